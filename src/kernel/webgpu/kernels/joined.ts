/**
 * Several matrices that share their input, of a few rows, in one dispatch; with what comes before them (the norm of one row)
 * and after them (a gate, or the way into the cache). Sums are those of matmul.ts.
 */
import type { Kernel } from '../gpu.ts';
import { BUNDLE } from '../weights.ts';
import { int8Block, int8Buffers, silu, toInt8 } from './activations.ts';
import {
  addParts,
  type Few,
  fewName,
  int8Term,
  integers,
  type Matmul,
  nameOf,
  PARTS,
  part,
  sumParts,
  teamsOf,
} from './matmul.ts';
import { canNorm, normalize, normBuffers, normParams } from './norm.ts';
import { each, halves, toF16, turned } from './text.ts';

/** Queries, keys and values of one row: the first two are turned, the latter two go into the tail of a cache too. */
export interface IntoTail {
  headDim: number;
  kvHeads: number;
}

/**
 * One after the other: the outs of all of them make the workgroups. `tail`: they are three, of one row, and go on as attention
 * reads them.
 */
export const matmulJoined = (m: Matmul, few: Few, count: number, tail?: IntoTail): Kernel => {
  const { rows } = few;
  const input = inputOf(few);
  const teams = teamsOf(few);
  return {
    name: `matmul ${nameOf(m)} ${fewName(few)} of ${count}${tail ? ` into tails ${tail.kvHeads} x ${tail.headDim}` : ''}`,
    params: [
      'inputs',
      'blocks',
      ...input.params,
      ...Array.from({ length: count }, (_, k) => `rows${k}`),
      ...(tail ? ['pairs', 'place', 'tokens'] : []),
    ],
    buffers: [
      ...input.buffers,
      ...Array.from({ length: count }, (_, k) => [`codes${k}: array<vec4u>`, `scales${k}: array<u32>`]).flat(),
      ...Array.from({ length: count }, (_, k) => `write out${k}: array<${tail ? 'vec2f' : 'f32'}>`),
      ...(tail ? ['angles: array<vec2f>', 'write pool: array<u32>'] : []),
    ],
    size: teams * BUNDLE,
    body: /* wgsl */ `
${halves}
${integers(m.format, count)}
${int8Term(m.format, 'xstats')}
${few.norm ? int8Block : ''}
${input.text}
${part}
var<workgroup> sums: array<f32, ${PARTS * rows * BUNDLE}>;
${addParts(rows, 'sums')}
${tail ? `${toF16}\n${turned}` : ''}
fn main(group: vec3u, lane: u32) {
  let first = group.y * ${rows};
  ${input.call}
  var bundle0 = group.x;
  ${each(
    count,
    k => `{
    let bundles = (p.rows${k} + ${BUNDLE - 1}) / ${BUNDLE};
    if (bundle0 < bundles) {
      ${sumParts(few, 'bundle0', [String(k)])}
      workgroupBarrier();
      ${tail ? storePairs(k, tail) : storeRows(k, rows, teams)}
      return;
    }
    bundle0 -= bundles;
  }`,
  )}
}`,
  };
};

const storeRows = (k: number, rows: number, teams: number) => /* wgsl */ `
      for (var at = lane; at < ${rows * BUNDLE}; at += ${teams * BUNDLE}) {
        let o = bundle0 * ${BUNDLE} + at % ${BUNDLE};
        let row = first + at / ${BUNDLE};
        if (o < p.rows${k} && row < p.inputs) { out${k}[row * p.rows${k} + o] = add_sums(at); }
      }`;

/** The tail is as `append` (domain.ts) has it, from word `place` on for the first head of this token. */
const storePairs = (k: number, { headDim, kvHeads }: IntoTail) => /* wgsl */ `
      let o = bundle0 * ${BUNDLE} + 2 * lane;
      if (lane < ${BUNDLE / 2} && o < p.rows${k}) {
        let pair = o % ${headDim} / 2;
        var y = vec2f(add_sums(2 * lane), add_sums(2 * lane + 1));
        ${k < 2 ? 'if (pair < p.pairs) { y = turned(y, angles[pair]); }' : ''}
        out${k}[o / 2] = y;
        ${k > 0 ? `pool[p.place + (${(k - 1) * kvHeads} + o / ${headDim}) * p.tokens * ${headDim / 2} + pair] = to_f16(y.x) | (to_f16(y.y) << 16);` : ''}
      }`;

/** Two matrices whose outs meet in a gate, silu(a) b, for a matrix that comes next: floats, and int8 a bundle. */
export const matmulGated = (m: Matmul, few: Few): Kernel => {
  const { rows } = few;
  const size = teamsOf(few) * BUNDLE;
  const input = inputOf(few);
  return {
    name: `matmul ${nameOf(m)} ${fewName(few)} gated`,
    params: ['inputs', 'blocks', ...input.params, 'rows'],
    buffers: [
      ...input.buffers,
      ...[0, 1].flatMap(k => [`codes${k}: array<vec4u>`, `scales${k}: array<u32>`]),
      'write out: array<vec4f>',
      ...int8Buffers,
    ],
    size,
    body: /* wgsl */ `
${halves}
${integers(m.format, 2)}
${int8Term(m.format, 'xstats')}
${input.text}
${part}
${silu}
${toInt8(size)}
var<workgroup> sums0: array<f32, ${PARTS * rows * BUNDLE}>;
var<workgroup> sums1: array<f32, ${PARTS * rows * BUNDLE}>;
${addParts(rows, 'sums0')}
${addParts(rows, 'sums1')}
fn main(group: vec3u, lane: u32) {
  let first = group.y * ${rows};
  ${input.call}
  ${sumParts(few, 'group.x', ['0', '1'])}
  workgroupBarrier();
  for (var at = lane; at < ${rows * BUNDLE}; at += ${size}) { sums0[at] = silu(add_sums0(at)) * add_sums1(at); }
  workgroupBarrier();
  let row = lane / ${BUNDLE / 4};
  let four = 4 * min(lane, ${(rows * BUNDLE) / 4 - 1}u);
  let y = vec4f(${each(4, j => `sums0[four + ${j}]`, ', ')});
  let live = row < ${rows} && first + row < p.inputs;
  let to = (first + row) * p.rows / 4 + group.x * ${BUNDLE / 4} + lane % ${BUNDLE / 4};
  if (live) { out[to] = y; }
  to_int8(y, to, lane, live);
}`,
  };
};

/** Whether a workgroup can norm a row by itself: it must sum squares like the kernel that norms rows alone. */
export const canNormFew = (few: Few): boolean => few.rows === 1 && canNorm(teamsOf(few) * BUNDLE);

/** Where the int8 activations of matrices that share them come from: made before, or of a row that is normed here. */
function inputOf(few: Few) {
  if (!few.norm) return { params: [], buffers: ['xq: array<vec4u>', 'xstats: array<vec2u>'], text: '', call: '' };
  return {
    params: normParams,
    buffers: normBuffers,
    text: normalize(teamsOf(few) * BUNDLE, few.norm),
    call: 'normalize(group.x == 0, lane);',
  };
}
