/** Into a codec's domain and back: queries before attention, and the merged states after it. */
import type { Kernel } from '../gpu.ts';
import { int8Buffers, toInt8 } from './activations.ts';
import { each, toF16, turned as turnedText } from './text.ts';

export const SIZE = 256;
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

/** Terms of a sum that are loaded together, so that they are waited for together. */
const UNROLL = 16;

/**
 * `NAME(kv, lane)`: y[r][c] = sum over i of matrix[i][c] x[r][i] for `rows` rows in workgroup memory, lanes side by side
 * in c, and where there are more lanes than that, each with a share of i.
 */
function multiply(name: string, from: number, to: number, rows: number, perHead: boolean): string {
  const lanes = Math.min(to, SIZE);
  const shares = Math.max(1, Math.floor(SIZE / lanes));
  const share = Math.ceil(from / shares);
  const unroll = share % UNROLL === 0 && from % shares === 0 ? UNROLL : 1;
  return /* wgsl */ `
var<workgroup> ${name}_sums: array<f32, ${shares * rows * to}>;
fn ${name}(kv: u32, lane: u32) {
  let share = lane / ${lanes};
  if (share < ${shares}) {
    for (var c = lane % ${lanes}; c < ${to}; c += ${lanes}) {
      ${each(rows, r => `var sum${r} = 0.0;`, ' ')}
      for (var i = share * ${share}; i < min(${from}u, (share + 1) * ${share}); i += ${unroll}) {
        ${each(unroll, u => `let m${u} = matrix[${perHead ? `kv * ${from * to} + ` : ''}(i + ${u}) * ${to} + c];`)}
        ${each(rows, r => each(unroll, u => `sum${r} = fma(m${u}, x[${r * from} + i + ${u}], sum${r});`, ' '))}
      }
      ${each(rows, r => `${name}_sums[(share * ${rows} + ${r}) * ${to} + c] = sum${r};`, ' ')}
    }
  }
  workgroupBarrier();
  for (var at = lane; at < ${rows * to}; at += ${SIZE}) {
    var sum = ${name}_sums[at];
    ${each(shares - 1, n => `sum += ${name}_sums[at + ${(n + 1) * rows * to}];`)}
    y[at] = sum;
  }
  workgroupBarrier();
}`;
}

/**
 * A workgroup a row and KV head: the scaled queries of its group in the domain, as floats or as int8 (four a word, then
 * their scale and sum), then what is added to their dots (a mean's share). The matrix comes transposed, [dim][coded dim],
 * so that neighbours read neighbours.
 */
export function prepare(d: Domain, int8: boolean): Kernel {
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const G = heads / kvHeads;
  const words = int8 ? C / 4 + 3 : C + 1;
  const floats = `for (var at = lane; at < ${G * C}; at += ${SIZE}) {
    queries[to + at / ${C} * ${words} + at % ${C}] = bitcast<u32>(${d.matrix ? 'y' : 'x'}[at]);
  }`;
  const y = d.matrix ? 'y' : 'x';
  // Lanes that share a row, four of whose numbers are in a vector.
  const share = 2 ** Math.floor(Math.log2(SIZE / G));
  const integers = /* wgsl */ `
  let r = min(lane / ${share}, ${G - 1}u);
  let part = lane % ${share};
  var own = 0.0;
  for (var c = part; c < ${C}; c += ${share}) { own = max(own, abs(${y}[r * ${C} + c])); }
  parts[lane / 4][lane % 4] = own;
  workgroupBarrier();
  var tops = parts[r * ${share / 4}];
  for (var n = 1u; n < ${share / 4}; n++) { tops = max(tops, parts[r * ${share / 4} + n]); }
  let most = max(max(tops.x, tops.y), max(tops.z, tops.w));
  let unit = select(0.0, 127.0 / most, most > 0);
  workgroupBarrier();
  var sum = 0;
  for (var c = part; c < select(0u, ${C / 4}u, lane < ${share * G}); c += ${share}) {
    let from_dim = r * ${C} + 4 * c;
    let four = vec4f(${each(4, j => `${y}[from_dim + ${j}]`, ', ')});
    let word = pack4xI8(vec4i(round(four * unit)));
    sum += dot4I8Packed(word, 0x01010101u);
    queries[to + r * ${words} + c] = word;
  }
  parts[lane / 4][lane % 4] = f32(sum);
  workgroupBarrier();
  if (part == 0 && lane < ${share * G}) {
    var all = parts[r * ${share / 4}];
    for (var n = 1u; n < ${share / 4}; n++) { all += parts[r * ${share / 4} + n]; }
    queries[to + r * ${words} + ${C / 4}] = bitcast<u32>(most / 127.0);
    queries[to + r * ${words} + ${C / 4 + 1}] = bitcast<u32>((all.x + all.y) + (all.z + all.w));
  }`;
  return {
    name: `prepare ${nameOf(d)}${int8 ? ' int8' : ''}`,
    params: ['table', 'rows', 'scale: f32'],
    buffers: ['data: array<u32>', 'q: array<f32>', ...tables(d), 'write queries: array<u32>'],
    size: SIZE,
    body: /* wgsl */ `
var<workgroup> x: array<f32, ${G * D}>;
${d.matrix ? `var<workgroup> y: array<f32, ${G * C}>;\n${multiply('into', D, C, G, d.perHead)}` : ''}
${int8 ? `var<workgroup> parts: array<vec4f, ${SIZE / 4}>;` : ''}
fn main(group: vec3u, lane: u32) {
  let row = data[p.table + p.rows + ${FINISH} * group.y];
  let kv = group.x;
  let at = (row * ${kvHeads} + kv) * ${G * D};
  let to = (row * ${kvHeads} + kv) * ${G * words};
  for (var i = lane; i < ${G * D}; i += ${SIZE}) { x[i] = q[at + i] * p.scale; }
  workgroupBarrier();
  ${d.matrix ? 'into(kv, lane);' : ''}
  ${int8 ? integers : floats}
  if (lane < ${G}) {
    var sum = 0.0;
    ${d.mean ? `for (var i = 0u; i < ${D}; i++) { sum = fma(mean[kv * ${D} + i], x[lane * ${D} + i], sum); }` : ''}
    queries[to + lane * ${words} + ${words - 1}] = bitcast<u32>(sum);
  }
}`,
  };
}

/** Floats of a partial state: o, then m and l, in whole vectors. */
export const stateFloats = (dim: number): number => 4 * Math.ceil(dim / 4) + 4;

/** States whose weights are in workgroup memory at a time. */
const MERGED = 1024;

/**
 * A workgroup a row and query head: merges the states of pages, takes them back, merges those of f16 tokens. Lanes are
 * states while weights are made, then vectors of four dims of every few states. `int8`: a matrix reads the result next.
 */
export function finish(d: Domain, int8: boolean): Kernel {
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const most = (states: string, dim: number, first: string, count: string) => `
  for (var u = lane; u < ${count}; u += ${SIZE}) {
    m = max(m, ${states}[((${first} + u) * ${heads} + group.x) * ${stateFloats(dim) / 4} + ${Math.ceil(dim / 4)}].x);
  }`;
  const merged = (states: string, dim: number, first: string, count: string, to: string) => {
    const vectors = Math.ceil(dim / 4);
    const lanes = Math.min(vectors, SIZE);
    const slots = Math.floor(SIZE / lanes);
    const rounds = Math.ceil(vectors / lanes);
    return /* wgsl */ `
  {
    ${each(rounds, j => `var sum${j} = vec4f(0.0);`, ' ')}
    for (var start = 0u; start < ${count}; start += ${MERGED}) {
      let some = min(${MERGED}u, ${count} - start);
      workgroupBarrier();
      for (var u = lane; u < some; u += ${SIZE}) {
        let state = ${states}[((${first} + start + u) * ${heads} + group.x) * ${stateFloats(dim) / 4} + ${vectors}];
        let weight = exp(state.x - m);
        weights[u] = weight;
        l = fma(weight, state.y, l);
      }
      workgroupBarrier();
      for (var u = lane / ${lanes}; u < select(0u, some, lane < ${slots * lanes}); u += ${slots}) {
        let at = ((${first} + start + u) * ${heads} + group.x) * ${stateFloats(dim) / 4} + lane % ${lanes};
        ${each(rounds, j => `${j > 0 ? `if (lane % ${lanes} + ${j * lanes} < ${vectors}) ` : ''}{ sum${j} = fma(vec4f(weights[u]), ${states}[at + ${j * lanes}], sum${j}); }`)}
      }
    }
    ${each(
      rounds,
      j => `workgroupBarrier();
    sums[lane] = sum${j};
    workgroupBarrier();
    if (lane < ${lanes} && lane + ${j * lanes} < ${vectors}) {
      var all = sums[lane];
      ${each(slots - 1, s => `all += sums[lane + ${(s + 1) * lanes}];`, ' ')}
      let i = 4 * (lane + ${j * lanes});
      for (var k = 0u; k < min(4u, ${dim} - i); k++) { ${to}[i + k] += all[k]; }
    }`,
    )}
  }`;
  };
  return {
    name: `finish ${nameOf(d)}${int8 ? ' int8' : ''}`,
    params: ['table', 'rows'],
    buffers: [
      'data: array<u32>',
      'states: array<vec4f>',
      'halves: array<vec4f>',
      ...tables(d),
      'write out: array<f32>',
      ...(int8 ? int8Buffers : []),
    ],
    size: SIZE,
    body: /* wgsl */ `
${int8 ? toInt8(SIZE) : ''}
var<workgroup> x: array<f32, ${Math.max(C, D)}>;
var<workgroup> y: array<f32, ${D}>;
var<workgroup> weights: array<f32, ${MERGED}>;
var<workgroup> sums: array<vec4f, ${SIZE}>;
var<workgroup> own_parts: array<vec4f, ${SIZE / 4}>;
var<workgroup> all_parts: array<vec4f, 4>;
fn both(a: vec4f, b: vec4f, add: bool) -> vec4f { return select(max(a, b), a + b, add); }
fn over_all(lane: u32, own: f32, add: bool) -> f32 {
  workgroupBarrier();
  own_parts[lane / 4][lane % 4] = own;
  workgroupBarrier();
  if (lane < 4) {
    var part = own_parts[lane];
    for (var n = 1u; n < ${SIZE / 16}; n++) { part = both(part, own_parts[lane + 4 * n], add); }
    all_parts[lane] = part;
  }
  workgroupBarrier();
  let four = both(both(all_parts[0], all_parts[1], add), both(all_parts[2], all_parts[3], add), add);
  let two = both(vec4f(four.xy, 0.0, 0.0), vec4f(four.zw, 0.0, 0.0), add);
  return select(max(two.x, two.y), two.x + two.y, add);
}
${d.matrix ? multiply('back', C, D, 1, d.perHead) : ''}
fn main(group: vec3u, lane: u32) {
  let at = p.table + p.rows + ${FINISH} * group.y;
  let row = data[at];
  let kv = group.x / ${heads / kvHeads};
  var m = -3e38;
  ${most('states', C, 'data[at + 1]', 'data[at + 2]')}
  ${most('halves', D, 'data[at + 3]', 'data[at + 4]')}
  m = over_all(lane, m, false);
  var l = 0.0;
  ${merged('states', C, 'data[at + 1]', 'data[at + 2]', 'x')}
  workgroupBarrier();
  ${d.mean ? 'let sealed = over_all(lane, l, true);' : ''}
  ${d.matrix ? 'back(kv, lane);' : `for (var i = lane; i < ${D}; i += ${SIZE}) { y[i] = x[i]; }\n  workgroupBarrier();`}
  ${d.mean ? `for (var i = lane; i < ${D}; i += ${SIZE}) { y[i] = fma(sealed, mean[kv * ${D} + i], y[i]); }` : ''}
  ${merged('halves', D, 'data[at + 3]', 'data[at + 4]', 'y')}
  let all = over_all(lane, l, true);
  let start = (row * ${heads} + group.x) * ${D};
  for (var i = lane; i < ${D}; i += ${SIZE}) {
    y[i] /= all;
    out[start + i] = y[i];
  }
  ${
    int8
      ? `workgroupBarrier();
  let i = 4 * min(lane, ${D / 4 - 1}u);
  to_int8(vec4f(y[i], y[i + 1], y[i + 2], y[i + 3]), start / 4 + lane, lane, lane < ${D / 4});`
      : ''
  }
}`,
  };
}

/** Rows of k and v into tails and sinks: words row, count, position, slot of the tail, slot of the sinks. */
export const APPEND = 5;

export interface Append {
  headDim: number;
  kvHeads: number;
  sinks: boolean;
  /** Query heads, where they and the keys are turned on the way (each is written back too). */
  turned?: number;
}

export function append({ headDim, kvHeads, sinks, turned }: Append): Kernel {
  const pairs = headDim / 2;
  const stored = 2 * kvHeads * pairs;
  const turn = /* wgsl */ `
${turnedText}
fn turn(x: vec2f, row: u32, pair: u32) -> vec2f {
  if (pair >= p.pairs) { return x; }
  return turned(x, angles[row * p.pairs + pair]);
}`;
  return {
    name: `append ${headDim} ${kvHeads} ${sinks ? 'sinks' : 'tail'}${turned ? ` turned ${turned}` : ''}`,
    params: ['runs', 'stride', 'tokens', 'slotWord', ...(turned ? ['pairs'] : [])],
    buffers: [
      'data: array<u32>',
      turned ? 'write k: array<vec2f>' : 'k: array<vec2f>',
      'v: array<vec2f>',
      'write pool: array<u32>',
      ...(turned ? ['angles: array<vec2f>', 'write q: array<vec2f>'] : []),
    ],
    size: SIZE,
    body: /* wgsl */ `
${toF16}
${turned ? turn : ''}
fn main(group: vec3u, lane: u32) {
  let run = p.runs + ${APPEND} * group.z;
  let n = group.x * ${SIZE} + lane;
  let position = data[run + 2] + group.y;
  if (group.y >= data[run + 1]${sinks ? ' || position >= p.tokens' : ''}) { return; }
  let row = data[run] + group.y;
  let pair = n % ${pairs};
  ${
    turned
      ? `if (n >= ${stored}) {
    let at = row * ${turned * pairs} + n - ${stored};
    if (n < ${stored + turned * pairs}) { q[at] = turn(q[at], row, pair); }
    return;
  }`
      : `if (n >= ${stored}) { return; }`
  }
  let side = n / ${kvHeads * pairs};
  let head = n / ${pairs} % ${kvHeads};
  let origin = row * ${kvHeads * pairs} + head * ${pairs} + pair;
  var x: vec2f;
  if (side == 1) { x = v[origin]; } else {
    x = ${turned ? 'turn(k[origin], row, pair)' : 'k[origin]'};
    ${turned ? 'k[origin] = x;' : ''}
  }
  let place = (side * ${kvHeads} + head) * p.tokens + position % p.tokens;
  pool[data[run + p.slotWord] * p.stride / 4 + place * ${pairs} + pair] = to_f16(x.x) | (to_f16(x.y) << 16);
}`,
  };
}
