/**
 * Any codec as floats. Where the dims of a token are contiguous, a lane reads eight of them at a time; where the tokens
 * of a dim are, four tokens (page-reader.ts has both). Used where the integer kernels do not apply, and in precise
 * mode.
 */

import type { PageEncoding, PageLayout } from '../../page-layout.ts';
import type { KeyStage, ValueStage } from './attend.ts';
import { readFour } from './grid.ts';
import { blockStart, pageStart } from './names.ts';
import { outlierMap } from './oaken.ts';
import { type DimOrder, pageReader, sequentialDims } from './page-reader.ts';
import { pageRelativeQueryLoader } from './page-relative.ts';
import { type PageShape, WORKGROUP_SIZE } from './shape.ts';
import { encodingTableOffset } from './tables.ts';

/** Lanes per token where eight dims are read at a time, and per dim where four tokens are. */
const PARTS = 4;
const LANES = WORKGROUP_SIZE / PARTS;
/** Tokens prefetched before the first is used. */
const PREFETCH = 4;

/** What the loops need to know about their source. */
export interface Floats {
  name: string;
  dim: number;
  tokens: number;
  /** Start of a call: `NAME_eight(ARGUMENTS t, c)` or `NAME_four(ARGUMENTS i, g)`. */
  call: string;
  by: 'eight' | 'four';
  dimOrder: DimOrder;
  /** Scales of tokens 4 g to 4 g + 3. */
  scale: string;
  text: string;
  setup: string;
  begin: string;
  /** Declarations that the other side may have too. */
  shared?: string;
}

interface Query {
  queryWords: number;
  /** Dim n of a query in `queries`. */
  at: string;
  /** For centered pages: the byte offset of their means, and dims per mean. */
  means?: { offset: number; dims: number };
}

const queryText = (dim: number, Q: number, by: Floats['by']) => {
  const vectors = by === 'eight' ? 2 * Math.ceil(dim / 8) * Q : dim * Math.ceil(Q / 4);
  return `var<workgroup> query: array<vec4f, ${vectors}>;`;
};

/** What the mean of a page adds to its scores. */
const meanScoresText = (Q: number) => `var<workgroup> mean_scores: array<f32, ${Q}>;`;
const scoreWithMean = ({ scale }: Floats) => `fma(dots, ${scale}, vec4f(mean_scores[q]))`;

/** Dim n of query q in workgroup memory. */
const queryComponent = ({ by, dimOrder }: Floats, Q: number) =>
  by === 'eight'
    ? `query[((${dimOrder.eight('n / 4')}) * ${Q} + q) * 2 + ${dimOrder.half('n / 4')}][n % 4]`
    : `query[n * ${Math.ceil(Q / 4)} + q / 4][q % 4]`;

export function floatKeys(floats: Floats, query: Query): KeyStage {
  const { name, dim: C, tokens: P, call, by, scale } = floats;
  const rounds = Math.ceil(P / LANES);
  const chunks = Math.ceil(P / 4 / 32);
  const E = Math.ceil(C / 8);
  /** Half h of eight c of query `$q`. Dims past the last are not in memory. */
  const half = (Q: number, c: string, h: number) => {
    const at = `query[(${c} * ${Q} + $q) * 2 + ${h}]`;
    return C % 8 === 0 ? at : `select(vec4f(0.0), ${at}, vec4u(8 * ${c} + ${4 * h}) + vec4u(0, 1, 2, 3) < vec4u(${C}))`;
  };
  const eights = (Q: number) => `{
      let part = lane % ${PARTS};
      @unroll(k, ${rounds}) {
        let t$k = min(lane / ${PARTS} + $(k * ${LANES}), ${P - 1}u);
        @unroll(q, ${Q}) var a$k_$q = 0.0;
      }
      for (var first_eight = part; first_eight < ${E}; first_eight += ${2 * PARTS}) {
        @unroll(u, 2) {
          let c$u = min(first_eight + $(u * ${PARTS}), ${E - 1}u);
          @unroll(k, ${rounds}) let e$k_$u = ${call} t$k, c$u);
        }
        @unroll(u, 2) if (first_eight + $(u * ${PARTS}) < ${E}) {
          @unroll(q, ${Q}) { let x$q = ${half(Q, 'c$u', 0)}; let y$q = ${half(Q, 'c$u', 1)}; }
          @unroll(k, ${rounds}) {
            @unroll(j, 4) @unroll(q, ${Q}) a$k_$q = fma(x$q[$j], e$k_$u.low[$j], a$k_$q);
            @unroll(j, 4) @unroll(q, ${Q}) a$k_$q = fma(y$q[$j], e$k_$u.high[$j], a$k_$q);
          }
        }
      }
      @unroll(k, ${rounds}) @unroll(q, ${Q}) store_sum(part, $q, t$k, a$k_$q);
    }`;
  const meanScores = (Q: number, { offset, dims }: NonNullable<Query['means']>) => `
    for (var q = lane; q < ${Q}; q += ${WORKGROUP_SIZE}) {
      var sum = 0.0;
      for (var n = 0u; n < ${dims}; n++) {
        sum = fma(read_f16(${pageStart('key')} + ${offset} + 2 * (head * ${dims} + n)), ${queryComponent(floats, Q)}, sum);
      }
      mean_scores[q] = sum;
    }`;
  const fours = (Q: number) => `{
      let part = lane / 32;
      @unroll(c, ${chunks}) {
        let g$c = min(lane % 32 + $(32 * c), ${P / 4 - 1}u);
        @unroll(q, ${Q}) var a$c_$q = vec4f(0.0);
      }
      for (var i = part * ${Math.ceil(C / PARTS)}; i < min(${C}u, (part + 1) * ${Math.ceil(C / PARTS)}); i++) {
        @unroll(v, ${Math.ceil(Q / 4)}) let x$v = query[i * ${Math.ceil(Q / 4)} + $v];
        @unroll(c, ${chunks}) {{
          let e = ${call} i, g$c);
          @unroll(q, ${Q}) a$c_$q = fma(vec4f(x$[q]), e, a$c_$q);
        }}
      }
      @unroll(c, ${chunks}) @unroll(q, ${Q}) store_sums4(part, $q, g$c, a$c_$q);
    }`;
  return {
    name,
    dim: C,
    queryWords: query.queryWords,
    loadedWords: C,
    parts: PARTS,
    setup: floats.setup,
    shared: floats.shared,
    begin: Q => `${floats.begin} ${query.means ? meanScores(Q, query.means) : ''}`,
    text: Q => `${floats.text}\n${queryText(C, Q, by)}${query.means ? `\n${meanScoresText(Q)}` : ''}`,
    load: Q => `${queryComponent(floats, Q)} = ${query.at};`,
    sums: by === 'eight' ? eights : fours,
    score: query.means ? scoreWithMean(floats) : `dots * ${scale}`,
  };
}

export function floatValues(floats: Floats): ValueStage {
  const { name, dim: C, tokens: P, call, by, dimOrder, scale } = floats;
  const V = (Q: number) => Math.ceil(Q / 4);
  const common = {
    name,
    dim: C,
    setup: floats.setup,
    shared: floats.shared,
    begin: () => floats.begin,
  };
  if (by === 'eight') {
    const row = Math.ceil(C / 8);
    const shares = Math.max(1, Math.floor(WORKGROUP_SIZE / row));
    // Several calls per lane where a row has more than 8 x 128 dims.
    const columns = Math.ceil(row / WORKGROUP_SIZE);
    const slot = shares > 1 ? `lane / ${row}` : '0u';
    const chunk = shares > 1 ? `lane % ${row}` : `lane + $(j * ${WORKGROUP_SIZE})`;
    return {
      ...common,
      shares,
      share: slot,
      text: Q => `${floats.text}\nvar<workgroup> probabilities: array<vec4f, ${P * V(Q)}>;`,
      storeProbabilities: Q => `let w = weights * (${scale}) * page_factor;
        @unroll(j, 4) probabilities[(4 * g + $j) * ${V(Q)} + q / 4][q % 4] = w[$j];`,
      declare: Q =>
        `@unroll(j, ${columns}) @unroll(q, ${Q}) { var low$j_$q = vec4f(0.0); var high$j_$q = vec4f(0.0); }`,
      sum: Q => `{
      let slot = ${slot};
      @unroll(j, ${columns}) @unroll(q, ${Q}) { low$j_$q *= factors[$q]; high$j_$q *= factors[$q]; }
      for (var next_token = slot; next_token < select(0u, ${P}u, slot < ${shares}); next_token += ${shares * PREFETCH}) {
        @unroll(j, ${columns}) if (${chunk} < ${row}) {
          @unroll(u, ${PREFETCH}) let e$u = ${call} min(next_token + $(u * ${shares}), ${P - 1}u), ${chunk});
          @unroll(u, ${PREFETCH}) if (next_token + $(u * ${shares}) < ${P}) {
            @unroll(v, ${V(Q)}) let w$v = probabilities[(next_token + $(u * ${shares})) * ${V(Q)} + $v];
            @unroll(q, ${Q}) {
              low$j_$q = fma(vec4f(w$[q]), e$u.low, low$j_$q);
              high$j_$q = fma(vec4f(w$[q]), e$u.high, high$j_$q);
            }
          }
        }
      }
    }`,
      addOutput: Q => `@unroll(j, ${columns}) if (${slot} < ${shares} && ${chunk} < ${row}) {
    let first = vec2u(${dimOrder.first(chunk, 0)}, ${dimOrder.first(chunk, 1)});
    for (var k = 0u; k < 4; k++) {
      @unroll(q, ${Q}) if (first.x + k < ${C}) { add_output($q, first.x + k, low$j_$q[k]); }
      @unroll(q, ${Q}) if (first.y + k < ${C}) { add_output($q, first.y + k, high$j_$q[k]); }
    }
  }`,
    };
  }
  const columns = Math.ceil(C / LANES);
  return {
    ...common,
    shares: PARTS,
    share: `lane % ${PARTS}`,
    text: Q => `${floats.text}\nvar<workgroup> probabilities: array<vec4f, ${(Q * P) / 4}>;`,
    storeProbabilities: () => `probabilities[q * ${P / 4} + g] = weights * (${scale}) * page_factor;`,
    declare: Q => `@unroll(q, ${Q}) @unroll(k, ${columns}) var o$q_$k = 0.0;`,
    sum: Q => `{
      @unroll(q, ${Q}) @unroll(k, ${columns}) o$q_$k *= factors[$q];
      for (var g = lane % ${PARTS}; g < ${P / 4}; g += ${PARTS}) {
        @unroll(q, ${Q}) let w$q = probabilities[$(q * ${P / 4}) + g];
        @unroll(k, ${columns}) {{
          let e = ${call} min(lane / ${PARTS} + $(k * ${LANES}), ${C - 1}u), g);
          @unroll(q, ${Q}) o$q_$k = fma(w$q.x, e.x, fma(w$q.y, e.y, fma(w$q.z, e.z, fma(w$q.w, e.w, o$q_$k))));
        }}
      }
    }`,
    addOutput: Q => `@unroll(k, ${columns}) @unroll(q, ${Q}) if (lane / ${PARTS} + $(k * ${LANES}) < ${C}) {
    add_output($q, lane / ${PARTS} + $(k * ${LANES}), o$q_$k);
  }`,
  };
}

function pageFloats(side: 'key' | 'value', name: string, layout: PageLayout, shape: PageShape): Floats {
  const reader = pageReader(side, layout, shape);
  const oaken = layout.encoding.kind === 'oaken';
  return {
    name,
    dim: layout.codedDim,
    tokens: shape.pageTokens,
    call: `${side}_${reader.by}(${pageStart(side)}, head,`,
    by: reader.by,
    dimOrder: reader.dimOrder ?? sequentialDims,
    scale: `${side}_scales(${pageStart(side)}, head, g)`,
    text: reader.text,
    setup: reader.setup ?? '',
    shared: oaken ? outlierMap(shape) : undefined,
    // After the other side has used the map.
    begin: oaken
      ? `workgroupBarrier(); ${side}_mark(${pageStart(side)}, head, ${blockStart(side)}, lane); workgroupBarrier();`
      : '',
  };
}

export const floatPageKeys = (name: string, layout: PageLayout, shape: PageShape): KeyStage =>
  floatKeys(pageFloats('key', name, layout, shape), {
    queryWords: layout.codedDim,
    at: 'bitcast<f32>(queries[origin + n])',
    means: layout.meansOffset === undefined ? undefined : { offset: layout.meansOffset, dims: shape.headDim },
  });

export const floatPageValues = (name: string, layout: PageLayout, shape: PageShape): ValueStage =>
  floatValues(pageFloats('value', name, layout, shape));

type Spectrum = PageEncoding & { kind: 'spectrum' };

/** Sparse spectral keys (tri): scores directly from the coefficients. A lane has four tokens and every fourth slot. */
function spectrumSums(
  { keptPairs, pairsOffset, cosines, sines }: Spectrum,
  layout: PageLayout,
  { headDim: D, pageTokens: P }: PageShape,
) {
  const tableOffset = encodingTableOffset(layout);
  const V = (Q: number) => Math.ceil(Q / 4);
  const shift = `vec4u(${32 - cosines.bits})`;
  const signed = (id: string) =>
    `vec4f(bitcast<vec4i>(key_four_${id}(${blockStart('key')}, slot, g) << ${shift}) >> ${shift})`;
  const grids = { pairs: { offset: pairsOffset, bits: 8, order: 'columns' as const }, cosines, sines };
  const text = Object.entries(grids)
    .map(([id, grid]) => readFour(`key_four_${id}`, { ...grid, tokens: P, dims: keptPairs }))
    .join('\n');
  return {
    text,
    sums: (Q: number) => `{
      let part = lane / 32;
      let g = min(lane % 32, ${P / 4 - 1}u);
      @unroll(q, ${Q}) var a$q = vec4f(0.0);
      for (var slot = part; slot < ${keptPairs}; slot += ${PARTS}) {
        let pairs = key_four_pairs(${blockStart('key')}, slot, g);
        let cosines = ${signed('cosines')};
        let sines = ${signed('sines')};
        @unroll(j, 4) {{
          let rotation_at = ${tableOffset} + 2 * ((4 * g + $j) * ${D / 2} + pairs[$j]);
          let rotation = vec2f(bitcast<f32>(keyTables[rotation_at]), bitcast<f32>(keyTables[rotation_at + 1]));
          let x = fma(cosines[$j], rotation.x, -(sines[$j] * rotation.y));
          let y = fma(cosines[$j], rotation.y, sines[$j] * rotation.x);
          @unroll(q, ${Q}) a$q[$j] = fma(query[2 * pairs[$j] * ${V(Q)} + $(q / 4)][$(q % 4)], x,
            fma(query[(2 * pairs[$j] + 1) * ${V(Q)} + $(q / 4)][$(q % 4)], y, a$q[$j]));
        }}
      }
      @unroll(q, ${Q}) store_sums4(part, $q, g, a$q);
    }`,
  };
}

/** Keys that are relative to their page: queries are transformed once per page. */
export function pageRelativeKeys(name: string, layout: PageLayout, shape: PageShape, perHead: boolean): KeyStage {
  const floats = pageFloats('key', name, layout, shape);
  const { encoding } = layout;
  const keys = floatKeys(floats, { queryWords: layout.codedDim, at: 'bitcast<f32>(queries[origin + n])' });
  const fromCoefficients =
    encoding.kind === 'spectrum' && encoding.cosines.bits <= 8 && shape.pageTokens <= 128
      ? spectrumSums(encoding, layout, shape)
      : undefined;
  const pageRelative = pageRelativeQueryLoader(layout, shape, perHead);
  return {
    ...keys,
    ...pageRelative.stage,
    text: Q => `${keys.text(Q)}\n${meanScoresText(Q)}\n${pageRelative.text(Q)}\n${fromCoefficients?.text ?? ''}`,
    score: scoreWithMean(floats),
    sums: fromCoefficients?.sums ?? keys.sums,
    begin: Q => `
    ${floats.begin}
    ${pageRelative.begin(Q, `${queryComponent(floats, Q)} = sum;`, 'mean_scores[q] = sum;')}
    workgroupBarrier();`,
  };
}
