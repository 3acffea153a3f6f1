/** Into a codec's domain and back: queries before attention, and the merged states after it. */
import type { Kernel } from '../gpu.ts';
import { each } from './text.ts';

const SIZE = 128;
/** Words of a row: row, first state and states of pages, first state and states of f16 tokens. */
export const FINISH = 5;

export interface Domain {
  headDim: number;
  codedDim: number;
  heads: number;
  kvHeads: number;
  /** Whether there is a matrix, one for each KV head, and a mean. */
  matrix: boolean;
  perHead: boolean;
  mean: boolean;
}

const nameOf = ({ headDim, codedDim, heads, kvHeads, matrix, perHead, mean }: Domain) =>
  `${headDim}/${codedDim} ${heads}/${kvHeads}${matrix ? ' matrix' : ''}${perHead ? ' a head' : ''}${mean ? ' mean' : ''}`;

const tables = ({ matrix, mean }: Domain) => [
  ...(matrix ? ['matrix: array<f32>'] : []),
  ...(mean ? ['mean: array<f32>'] : []),
];

/**
 * A workgroup a row and query head: the scaled query in the domain, as floats or as int8 (four a word, then their scale
 * and sum), then what is added to its dots (a mean's share). The matrix comes transposed, [dim][coded dim], so that
 * neighbours read neighbours.
 */
export function prepare(d: Domain, int8: boolean): Kernel {
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const words = int8 ? C / 4 + 3 : C + 1;
  const floats = `for (var c = lane; c < ${C}; c += ${SIZE}) { queries[to + c] = bitcast<u32>(coded[c]); }`;
  const integers = /* wgsl */ `
  var most = 0.0;
  for (var c = 0u; c < ${C}; c++) { most = max(most, abs(coded[c])); }
  let unit = select(0.0, 127.0 / most, most > 0);
  for (var c = lane; c < ${C / 4}; c += ${SIZE}) {
    let four = vec4f(coded[4 * c], coded[4 * c + 1], coded[4 * c + 2], coded[4 * c + 3]);
    packed[c] = pack4xI8(vec4i(round(four * unit)));
    queries[to + c] = packed[c];
  }
  workgroupBarrier();
  if (lane == 0) {
    var sum = 0;
    for (var c = 0u; c < ${C / 4}; c++) { sum += dot4I8Packed(packed[c], 0x01010101u); }
    queries[to + ${C / 4}] = bitcast<u32>(most / 127.0);
    queries[to + ${C / 4 + 1}] = bitcast<u32>(f32(sum));
  }`;
  return {
    name: `prepare ${nameOf(d)}${int8 ? ' int8' : ''}`,
    params: ['table', 'rows', 'scale: f32'],
    buffers: ['data: array<u32>', 'q: array<f32>', ...tables(d), 'write queries: array<u32>'],
    size: SIZE,
    body: /* wgsl */ `
var<workgroup> x: array<f32, ${D}>;
var<workgroup> coded: array<f32, ${C}>;
${int8 ? `var<workgroup> packed: array<u32, ${C / 4}>;` : ''}
fn main(group: vec3u, lane: u32) {
  let row = data[p.table + p.rows + ${FINISH} * group.y];
  let kv = group.x / ${heads / kvHeads};
  let at = (row * ${heads} + group.x) * ${D};
  let to = (row * ${heads} + group.x) * ${words};
  for (var i = lane; i < ${D}; i += ${SIZE}) { x[i] = q[at + i] * p.scale; }
  workgroupBarrier();
  for (var c = lane; c < ${C}; c += ${SIZE}) {
    ${
      d.matrix
        ? `var sum = 0.0;
    for (var i = 0u; i < ${D}; i++) { sum = fma(matrix[${d.perHead ? `kv * ${C * D} + ` : ''}i * ${C} + c], x[i], sum); }
    coded[c] = sum;`
        : 'coded[c] = x[c];'
    }
  }
  workgroupBarrier();
  ${int8 ? integers : floats}
  if (lane == 0) {
    var sum = 0.0;
    ${d.mean ? `for (var i = 0u; i < ${D}; i++) { sum = fma(mean[kv * ${D} + i], x[i], sum); }` : ''}
    queries[to + ${words - 1}] = bitcast<u32>(sum);
  }
}`,
  };
}

/** A workgroup a row and query head: merges the states of pages, takes them back, merges those of f16 tokens. */
export function finish(d: Domain): Kernel {
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const columns = Math.ceil(C / SIZE);
  const merged = (states: string, dim: number, first: string, count: string, to: string, l: string) => /* wgsl */ `
  for (var u = 0u; u < ${count}; u++) {
    let at = ((${first} + u) * ${heads} + group.x) * ${dim + 2};
    let weight = exp(${states}[at + ${dim}] - m);
    ${l} = fma(weight, ${states}[at + ${dim + 1}], ${l});
    ${each(Math.ceil(dim / SIZE), j => `if (lane + ${j * SIZE} < ${dim}) { ${to}${j} = fma(weight, ${states}[at + lane + ${j * SIZE}], ${to}${j}); }`)}
  }`;
  const most = (states: string, dim: number, first: string, count: string) => `
  for (var u = 0u; u < ${count}; u++) { m = max(m, ${states}[((${first} + u) * ${heads} + group.x) * ${dim + 2} + ${dim}]); }`;
  return {
    name: `finish ${nameOf(d)}`,
    params: ['table', 'rows'],
    buffers: ['data: array<u32>', 'states: array<f32>', 'halves: array<f32>', ...tables(d), 'write out: array<f32>'],
    size: SIZE,
    body: /* wgsl */ `
var<workgroup> coded: array<f32, ${C}>;
fn main(group: vec3u, lane: u32) {
  let at = p.table + p.rows + ${FINISH} * group.y;
  let row = data[at];
  let kv = group.x / ${heads / kvHeads};
  var m = -3e38;
  ${most('states', C, 'data[at + 1]', 'data[at + 2]')}
  ${most('halves', D, 'data[at + 3]', 'data[at + 4]')}
  var l = 0.0;
  ${each(columns, j => `var y${j} = 0.0;`, ' ')}
  ${merged('states', C, 'data[at + 1]', 'data[at + 2]', 'y', 'l')}
  ${each(columns, j => `if (lane + ${j * SIZE} < ${C}) { coded[lane + ${j * SIZE}] = y${j}; }`)}
  workgroupBarrier();
  ${each(
    Math.ceil(D / SIZE),
    j => `var o${j} = 0.0;
  if (lane + ${j * SIZE} < ${D} && data[at + 2] > 0) {
    let i = lane + ${j * SIZE};
    ${
      d.matrix
        ? `for (var c = 0u; c < ${C}; c++) { o${j} = fma(matrix[${d.perHead ? `kv * ${C * D} + ` : ''}c * ${D} + i], coded[c], o${j}); }`
        : `o${j} = coded[i];`
    }
    ${d.mean ? `o${j} = fma(l, mean[kv * ${D} + i], o${j});` : ''}
  }`,
  )}
  ${merged('halves', D, 'data[at + 3]', 'data[at + 4]', 'o', 'l')}
  ${each(Math.ceil(D / SIZE), j => `if (lane + ${j * SIZE} < ${D}) { out[(row * ${heads} + group.x) * ${D} + lane + ${j * SIZE}] = o${j} / l; }`)}
}`,
  };
}

/** Rows of k and v into tails and sinks: words row, count, position, slot of the tail, slot of the sinks. */
export const APPEND = 5;

export function append(headDim: number, kvHeads: number, sinks: boolean, toF16: string): Kernel {
  const pairs = headDim / 2;
  return {
    name: `append ${headDim} ${kvHeads} ${sinks ? 'sinks' : 'tail'}`,
    params: ['runs', 'stride', 'tokens', 'slotWord'],
    buffers: ['data: array<u32>', 'k: array<vec2f>', 'v: array<vec2f>', 'write pool: array<u32>'],
    size: SIZE,
    body: /* wgsl */ `
${toF16}
fn main(group: vec3u, lane: u32) {
  let run = p.runs + ${APPEND} * group.z;
  let n = group.x * ${SIZE} + lane;
  let position = data[run + 2] + group.y;
  if (group.y >= data[run + 1] || n >= ${2 * kvHeads * pairs}${sinks ? ' || position >= p.tokens' : ''}) { return; }
  let side = n / ${kvHeads * pairs};
  let head = n / ${pairs} % ${kvHeads};
  let pair = n % ${pairs};
  let origin = (data[run] + group.y) * ${kvHeads * pairs} + head * ${pairs} + pair;
  let x = select(k[origin], v[origin], side == 1);
  let place = (side * ${kvHeads} + head) * p.tokens + position % p.tokens;
  pool[data[run + p.slotWord] * p.stride / 4 + place * ${pairs} + pair] = to_f16(x.x) | (to_f16(x.y) << 16);
}`,
  };
}
