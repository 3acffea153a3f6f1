/**
 * f16 and fp8 pages with f16 subgroup matrices, where the adapter has them; else float-rows.ts reads these pages. Half
 * of the dims of 16 tokens at a time go from prefetched registers to workgroup memory, as f16:
 *
 *   keys     16 tokens x 16 dims by 16 dims x 8 queries. The sums go through workgroup memory to the lanes of the tokens.
 *   values   16 dims x 16 tokens by 16 tokens x 8 queries, over all tokens of the page. The sums go to the lanes of the dims.
 *
 * With fewer than 8 queries, matrices contain whatever lies behind them; the sums of these are not read.
 */

import type { PageLayout } from '../../../page-layout.ts';
import type { AttendShape } from '../attend.ts';
import { blockStart, type Side } from '../names.ts';
import { maxOf4 } from '../snippets.ts';
import { addTerm, type KeyStage, LOG2E, type ValueStage, vec4Of } from './attend.ts';
import { FOUR, opaque, SCRATCH, vectors } from './names.ts';
import { LANES } from './subgroup.ts';

const TILE = 16;
const MATRIX_QUERIES = 8;
/** Tiles of 16 tokens per page, and of 16 dims per token. */
const TILES = 8;
/** Dims per chunk, and vectors (eight f16) per token in workgroup memory: one more, to avoid bank conflicts. */
const DIMS = 64;
const STRIDE = DIMS / 8 + 1;
/** Tiles of tokens prefetched. */
const PREFETCH_TILES = 2;

/** SCRATCH holds the probabilities, or a matrix of key sums, and then the chunk. */
const chunkAt = (Q: number) => Math.max(2 * TILES * Q, (MATRIX_QUERIES * TILE) / 4);
const scratchVectors = (Q: number) => chunkAt(Q) + TILE * STRIDE;

/**
 * How values become f16: bytes per value, the f16 words of a 16-byte vector, a factor, and the order of every four
 * values.
 */
interface Kind {
  bytes: number;
  toF16(vector: string): string[];
  unit: number;
  order: readonly number[];
}

const KINDS: Record<string, Kind> = {
  f16: { bytes: 2, toF16: v => [v], unit: 1, order: [0, 1, 2, 3] },
  fp8: {
    bytes: 1,
    toF16: v => ['xy', 'zw'].map(([a, b]) => `vec4u(fp8_to_f16(${v}.${a}), fp8_to_f16(${v}.${b}))`),
    unit: 256,
    order: [0, 2, 1, 3],
  },
};

function kindOf(
  { encoding, sharedBytes, blockBytes, codedDim, ropeFrequencies }: PageLayout,
  shape: AttendShape,
): Kind | undefined {
  const { headDim: D, pageTokens: P, group, subgroupMatrices, subgroupSize } = shape;
  if (!subgroupMatrices || subgroupSize !== LANES || group > MATRIX_QUERIES || ropeFrequencies) return undefined;
  if (D !== TILE * TILES || P !== TILE * TILES || codedDim !== D) return undefined;
  return [sharedBytes, blockBytes].every(n => n % 16 === 0) ? KINDS[encoding.kind] : undefined;
}

const common = {
  dim: TILE * TILES,
  maxQueries: MATRIX_QUERIES,
  scratchVectors,
  enable: ['f16', 'chromium_experimental_subgroup_matrix'],
};

const RESULT = `subgroup_matrix_result<f32, ${MATRIX_QUERIES}, ${TILE}>`;
/** Left matrices have tokens or dims, right ones queries. */
const left = (order: 'row_major' | 'col_major', at: string) =>
  `subgroupMatrixLoad<subgroup_matrix_left<f16, ${TILE}, ${TILE}>, ${order}>(&${SCRATCH}, ${at}, ${STRIDE})`;
const right = (at: string) =>
  `subgroupMatrixLoad<subgroup_matrix_right<f16, ${MATRIX_QUERIES}, ${TILE}>, col_major>(&${SCRATCH}, ${at}, 2)`;
const multiplyAdd = (sums: string, a: string, b: string) =>
  `${sums} = subgroupMatrixMultiplyAccumulate(${a}, ${b}, ${sums});`;
const storeSums = (sums: string, at: string) => `subgroupMatrixStore<col_major>(&${SCRATCH}, ${at}, ${sums}, 4);`;

/** Stores a lane's four values of query `$q` as f16, in tile lane / 4, which has 16 values of each query. */
const storeFour = (Q: number, four: string) => `{
    let to = lane / 4 * ${2 * Q} + $(2 * q) + lane % 4 / 2;
    ${SCRATCH}[to][lane % 2 * 2] = pack2x16float(${four}.xy);
    ${SCRATCH}[to][lane % 2 * 2 + 1] = pack2x16float(${four}.zw);
  }`;

/** Chunks of a side: half `$h` of the dims of 16 tokens, some vectors per lane. */
function chunksOf(side: Side, { bytes, toF16 }: Kind) {
  const lanes = (DIMS * bytes) / 16;
  const tokens = LANES / lanes;
  const fill = (t: string) =>
    `pool4[${blockStart(side)} / 16 + (${t} + $(${tokens} * n) + lane / ${lanes}) * ${2 * lanes} + $(${lanes} * h) + lane % ${lanes}]`;
  const vectors = toF16(`${side}$a_$h_$n`);
  return {
    prefetch: () =>
      `@unroll(a, ${PREFETCH_TILES}) @unroll(h, 2) @unroll(n, ${TILE / tokens}) var ${side}$a_$h_$n = ${fill(`$(${TILE} * a)u`)};`,
    /**
     * Multiplies both halves of every `tile`. The products are in a branch, since compilers would otherwise delay the
     * prefetches until after them.
     */
    tileLoop: (Q: number, products: string, then = '') => `
    for (var first = 0u; first < ${opaque(TILES)}; first += ${PREFETCH_TILES}) {
      @unroll(a, ${PREFETCH_TILES}) {{
        let tile = first + $a;
        let next = ${TILE} * min(tile + ${PREFETCH_TILES}, ${TILES - 1}u);
        @unroll(h, 2) {
          @unroll(n, ${TILE / tokens}) {{
            let to = ${chunkAt(Q)} + ($(${tokens} * n) + lane / ${lanes}) * ${STRIDE} + ${vectors.length} * (lane % ${lanes});
            ${vectors.map((vector, k) => `${SCRATCH}[to + ${k}] = ${vector};`).join(' ')}
          }}
          @unroll(n, ${TILE / tokens}) ${side}$a_$h_$n = ${fill('next')};
          workgroupBarrier();
          if (${FOUR} > 0) { ${products} }
          workgroupBarrier();
        }
        ${then}
      }}
    }`,
  };
}

export function subgroupMatrixKeys(name: string, layout: PageLayout, shape: AttendShape): KeyStage | undefined {
  const kind = kindOf(layout, shape);
  if (!kind) return undefined;
  const { dim } = common;
  const { prefetch, tileLoop } = chunksOf('key', kind);
  return {
    ...common,
    name: `matrices ${name}`,
    queryWords: dim,
    text: () => '',
    // Queries are scaled to a maximum of 1, so that f16 does not overflow.
    load: Q => `
  @unroll(v, ${vectors(Q)}) var max_abs$v = vec4f(0.0);
  @unroll(q, ${Q}) {
    let x$q = bitcast<vec4f>(vec4u(@list(i in [${kind.order}], queries[query_origin$q + 4 * lane + $i])));
    max_abs$[q] = ${maxOf4('abs(x$q)')};
  }
  @unroll(v, ${vectors(Q)}) {
    max_abs$v = max(reduce_max(max_abs$v), vec4f(1e-30));
    let query_scale$v = max_abs$v * (${kind.unit} * ${LOG2E});
  }
  @unroll(q, ${Q}) {{ let y = x$q * (1.0 / max_abs$[q]); ${storeFour(Q, 'y')} }}
  workgroupBarrier();
  @unroll(k, ${TILES}) let query$k = ${right(`$(${2 * Q} * k)`)};
  workgroupBarrier();`,
    sums: Q => `
    @unroll(q, ${Q}) var dots0_$q = vec4f(0.0);
    ${prefetch()}
    var sums = ${RESULT}();
    ${tileLoop(
      Q,
      `
      @unroll(k, 4) ${multiplyAdd('sums', left('row_major', `$(${chunkAt(Q)} + 2 * k)`), 'query$(4 * h + k)')}
      @unroll(s, h) { ${storeSums('sums', '0')} sums = ${RESULT}(); }`,
      `if (lane / 4 == tile) { @unroll(q, ${Q}) dots0_$q = bitcast<vec4f>(${SCRATCH}[$(4 * q) + lane % 4]); }`,
    )}
    workgroupBarrier();`,
    score: plus => addTerm('dots$c_$q * vec4f(query_scale$[q])', plus),
  };
}

/** Matrices of sums that fit in the scratch space of a chunk. */
const MATRICES_AT_ONCE = 4;
const SUMS = (MATRIX_QUERIES * TILE) / 4;

export function subgroupMatrixValues(name: string, layout: PageLayout, shape: AttendShape): ValueStage | undefined {
  const kind = kindOf(layout, shape);
  if (!kind) return undefined;
  const { prefetch, tileLoop } = chunksOf('value', kind);
  /** Lanes that own four neighbours have their probabilities; others get them through workgroup memory. */
  const neighbours = (Q: number, at: string) => `
    @unroll(c, 1) @unroll(j, 4) {{
      let t = ${at};
      @unroll(q, ${Q}) ${SCRATCH}[$(${LANES} * q) + t / 4][t % 4] = bitcast<u32>(prob0_$q[$j]);
    }}
    workgroupBarrier();
    @unroll(q, ${Q}) let v$q = bitcast<vec4f>(${SCRATCH}[$(${LANES} * q) + lane]);
    workgroupBarrier();`;
  const addResults = (Q: number, component: number, j: number) =>
    `@unroll(v, ${vectors(Q)}) out0_${j}_$v = fma(vec4f${vec4Of(Q, `result$q[${component}]`)}, unit$v, out0_${j}_$v * rescale$v);`;
  return {
    ...common,
    name: `matrices ${name}`,
    text: () => '',
    prefetch,
    accumulate: (Q, { strided, at }) => `
    ${strided ? neighbours(Q, at) : ''}
    @unroll(q, ${Q}) { ${storeFour(Q, strided ? 'v$q' : 'prob0_$q')} }
    @unroll(n, ${TILES}) var sums$n = ${RESULT}();
    ${tileLoop(
      Q,
      `let weights = ${right(`tile * ${2 * Q}`)};
      @unroll(n, 4) ${multiplyAdd('sums$(4 * h + n)', left('col_major', `$(${chunkAt(Q)} + 2 * n)`), 'weights')}`,
    )}
    @unroll(q, ${Q}) var result$q = vec4f(0.0);
    @unroll(m, ${TILES / MATRICES_AT_ONCE}) {
      @unroll(n, ${MATRICES_AT_ONCE}) ${storeSums(`sums$(${MATRICES_AT_ONCE} * m + n)`, `$(${chunkAt(Q)} + ${SUMS} * n)`)}
      workgroupBarrier();
      if (lane / ${4 * MATRICES_AT_ONCE} == $m) {
        let from_sums = ${chunkAt(Q)} + lane / 4 % ${MATRICES_AT_ONCE} * ${SUMS} + lane % 4;
        @unroll(q, ${Q}) result$q = bitcast<vec4f>(${SCRATCH}[from_sums + $(4 * q)]);
      }
      workgroupBarrier();
    }
    @unroll(v, ${vectors(Q)}) let unit$v = page_factor$v * ${kind.unit}.0;
    ${kind.order.map((component, j) => addResults(Q, component, j)).join('\n')}`,
  };
}
