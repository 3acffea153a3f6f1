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
  /**
   * Whether there is a matrix, one for each KV head, and a mean. A matrix of Hadamard's with signs a dim comes as these
   * signs, over the root of the dims.
   */
  matrix: boolean;
  signs: boolean;
  perHead: boolean;
  mean: boolean;
}

export const domainName = ({ headDim, codedDim, heads, kvHeads, matrix, signs, perHead, mean }: Domain) =>
  `${headDim}/${codedDim} ${heads}/${kvHeads}${signs ? ' signs' : matrix ? ' matrix' : ''}${perHead ? ' a head' : ''}${mean ? ' mean' : ''}`;

/**
 * Terms of a sum and states that are loaded together, so that they are waited for together. With many rows there are other
 * workgroups to do something meanwhile: the more of them, the fewer registers each takes.
 */
const AHEAD = { few: { terms: 16, states: 16 }, many: { terms: 4, states: 4 } };
export type Crowd = keyof typeof AHEAD;

/** Rows from which on they are many. */
const MANY = 32;
export const crowdOf = (rows: number): Crowd => (rows < MANY ? 'few' : 'many');

/** Query heads that a workgroup takes, all of one KV head: they share what is read of the matrix. */
export const headsAtOnce = (group: number): number => [4, 3, 2].find(n => group % n === 0) ?? 1;

/** Words of a prepared int8 query: four numbers a word, then its scale, its sum and the constant. */
export const int8Words = (dim: number): number => dim / 4 + 3;

/** Numbers of a row of the matrix that a lane has side by side. */
const widthOf = (to: number) => (to % 4 === 0 ? 4 : 1);

/**
 * `NAME(kv, lane)`: y[r][c] += sum over i of matrix[i][c] x[r][i] for `rows` rows in workgroup memory, lanes side by side
 * in c, and where there are more lanes than that, each with a share of i.
 */
function multiply(name: string, from: number, to: number, rows: number, perHead: boolean, terms: number): string {
  const width = widthOf(to);
  const lanes = Math.min(to / width, SIZE);
  const shares = from % Math.floor(SIZE / lanes) === 0 ? Math.floor(SIZE / lanes) : 1;
  const share = from / shares;
  const unroll = share % terms === 0 ? terms : 1;
  const type = width === 4 ? 'vec4f' : 'f32';
  const term = (r: number, u: number) => (unroll === 1 ? at('x', `${r * from} + i`) : `x${r}_${u >> 2}[${u & 3}]`);
  const to4 = (r: number) => (width === 4 ? `y[${(r * to) / 4} + c]` : at('y', `${r * to} + c`));
  return /* wgsl */ `
fn ${name}(kv: u32, lane: u32) {
  let share = lane / ${lanes};
  for (var first = 0u; first < ${to / width}; first += ${lanes}) {
    let c = first + lane % ${lanes};
    let live = share < ${shares} && c < ${to / width};
    ${each(rows, r => `var sum${r} = ${type}();`, ' ')}
    for (var i = share * ${share}; i < select(0, (share + 1) * ${share}, live); i += ${unroll}) {
      ${each(unroll, u => `let m${u} = matrix[${perHead ? `kv * ${(from * to) / width} + ` : ''}(i + ${u}) * ${to / width} + c];`)}
      ${unroll > 1 ? each(rows, r => each(unroll / 4, u => `let x${r}_${u} = x[(${r * from} + i) / 4 + ${u}];`, ' ')) : ''}
      ${each(rows, r => each(unroll, u => `sum${r} = fma(m${u}, ${type}(${term(r, u)}), sum${r});`, ' '))}
    }
    for (var turn = 0u; turn < ${shares}; turn++) {
      if (live && share == turn) { ${each(rows, r => `${to4(r)} += sum${r};`, ' ')} }
      workgroupBarrier();
    }
  }
}`;
}

/** Bindings of a codec's matrix and mean. */
const tables = ({ matrix, mean }: Domain, to: number) => [
  ...(matrix ? [`matrix: array<${widthOf(to) === 4 ? 'vec4f' : 'f32'}>`] : []),
  ...(mean ? ['mean: array<f32>'] : []),
];

/** Rows of floats in workgroup memory, four to a vector. */
const rowsOf = (name: string, numbers: number) => `var<workgroup> ${name}: array<vec4f, ${Math.ceil(numbers / 4)}>;`;
const at = (name: string, i: string) => `${name}[(${i}) / 4][(${i}) % 4]`;

/** Lanes that a query head has of a workgroup: four of their numbers are in a vector. */
const shareOf = (G: number) => 2 ** Math.floor(Math.log2(SIZE / G));

/** `over_head(lane, own, add)`: the largest, or the sum, of what the lanes of a head have. */
const overHead = (G: number) => /* wgsl */ `
var<workgroup> own_parts: array<vec4f, ${SIZE / 4}>;
fn both(a: vec4f, b: vec4f, add: bool) -> vec4f { return select(max(a, b), a + b, add); }
fn over_head(lane: u32, own: f32, add: bool) -> f32 {
  workgroupBarrier();
  own_parts[lane / 4][lane % 4] = own;
  workgroupBarrier();
  let first = min(lane / ${shareOf(G)}, ${G - 1}u) * ${shareOf(G) / 4};
  var four = own_parts[first];
  for (var n = 1u; n < ${shareOf(G) / 4}; n++) { four = both(four, own_parts[first + n], add); }
  return select(max(max(four.x, four.y), max(four.z, four.w)), (four.x + four.y) + (four.z + four.w), add);
}`;

/**
 * A workgroup a row and some heads: their scaled queries in the domain, as floats or as int8 (four a word, then
 * their scale and sum), then what is added to their dots (a mean's share). The matrix comes transposed, [dim][coded dim],
 * so that neighbours read neighbours. Where it is Hadamard's with signs, lanes/prepare.ts and teams/finish.ts do the same.
 */
export function prepare(d: Domain, int8: boolean, crowd: Crowd): Kernel {
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const G = headsAtOnce(heads / kvHeads);
  const words = int8 ? int8Words(C) : C + 1;
  const y = d.matrix ? 'y' : 'x';
  const floats = `for (var at = lane; at < ${G * C}; at += ${SIZE}) {
    queries[to + at / ${C} * ${words} + at % ${C}] = bitcast<u32>(${at(y, 'at')});
  }`;
  const share = shareOf(G);
  const integers = /* wgsl */ `
  let r = min(lane / ${share}, ${G - 1}u);
  let part = lane % ${share};
  let live = lane < ${share * G};
  var top = vec4f(0.0);
  for (var c = part; c < ${C / 4}; c += ${share}) { top = max(top, abs(${y}[r * ${C / 4} + c])); }
  let most = over_head(lane, max(max(top.x, top.y), max(top.z, top.w)), false);
  let unit = select(0.0, 127.0 / most, most > 0);
  var sum = 0;
  for (var c = part; c < select(0u, ${C / 4}u, live); c += ${share}) {
    let word = pack4xI8(vec4i(round(${y}[r * ${C / 4} + c] * unit)));
    sum += dot4I8Packed(word, 0x01010101u);
    queries[to + r * ${words} + c] = word;
  }
  let all = over_head(lane, f32(sum), true);
  if (part == 0 && live) {
    queries[to + r * ${words} + ${C / 4}] = bitcast<u32>(most / 127.0);
    queries[to + r * ${words} + ${C / 4 + 1}] = bitcast<u32>(all);
  }`;
  return {
    name: `prepare ${domainName(d)}${int8 ? ' int8' : ''} ${crowd}`,
    params: ['table', 'rows', 'scale: f32'],
    buffers: ['data: array<u32>', 'q: array<f32>', ...tables(d, C), 'write queries: array<u32>'],
    size: SIZE,
    body: /* wgsl */ `
${rowsOf('x', G * D)}
${d.matrix ? `${rowsOf('y', G * C)}\n${multiply('into', D, C, G, d.perHead, AHEAD[crowd].terms)}` : ''}
${int8 ? overHead(G) : ''}
fn main(group: vec3u, lane: u32) {
  let row = data[p.table + p.rows + ${FINISH} * group.y];
  let kv = group.x * ${G} / ${heads / kvHeads};
  let at = (row * ${heads} + group.x * ${G}) * ${D};
  let to = (row * ${heads} + group.x * ${G}) * ${words};
  for (var i = lane; i < ${G * D}; i += ${SIZE}) { x[i / 4][i % 4] = q[at + i] * p.scale; }
  workgroupBarrier();
  if (lane < ${G}) {
    var sum = 0.0;
    ${d.mean ? `for (var i = 0u; i < ${D}; i++) { sum = fma(mean[kv * ${D} + i], ${at('x', `lane * ${D} + i`)}, sum); }` : ''}
    queries[to + lane * ${words} + ${words - 1}] = bitcast<u32>(sum);
  }
  ${d.matrix ? 'into(kv, lane);' : ''}
  ${int8 ? integers : floats}
}`,
  };
}

/** Floats of a partial state: o, then m and l, in whole vectors. */
export const stateFloats = (dim: number): number => 4 * Math.ceil(dim / 4) + 4;

/** States whose weights are in workgroup memory at a time. */
const MERGED = 512;

/**
 * A workgroup a row and some heads: merges the states of pages, takes them back, merges those of f16 tokens. Lanes are
 * states while weights are made, then vectors of four dims of every few states. `int8`: a matrix reads the result next.
 */
export function finish(d: Domain, int8: boolean, crowd: Crowd): Kernel {
  const { terms, states: ahead } = AHEAD[crowd];
  const { headDim: D, codedDim: C, heads, kvHeads } = d;
  const G = headsAtOnce(heads / kvHeads);
  const share = shareOf(G);
  const merged = Math.floor(MERGED / G);
  const stateOf = (dim: number, n: string, g: string) =>
    `((${n}) * ${heads} + group.x * ${G} + ${g}) * ${stateFloats(dim) / 4}`;
  const most = (states: string, dim: number, first: string, count: string) => `
  for (var u = part; u < select(0u, ${count}, live); u += ${share}) {
    m = max(m, ${states}[${stateOf(dim, `${first} + u`, 'own')} + ${Math.ceil(dim / 4)}].x);
  }`;
  const merge = (states: string, dim: number, first: string, count: string, to: string) => {
    const vectors = Math.ceil(dim / 4);
    // Vectors of all heads, one a lane.
    const all = G * vectors;
    const lanes = Math.min(all, SIZE);
    const slots = Math.floor(SIZE / lanes);
    const rounds = Math.ceil(all / lanes);
    const place = (j: number) => `let n = min(lane % ${lanes} + ${j * lanes}, ${all - 1}u); let g = n / ${vectors};`;
    return /* wgsl */ `
  {
    ${each(rounds, j => `var sum${j} = vec4f(0.0);`, ' ')}
    let slot = lane / ${lanes};
    for (var start = 0u; start < ${count}; start += ${merged}) {
      let some = min(${merged}u, ${count} - start);
      workgroupBarrier();
      for (var u = part; u < select(0u, some, live); u += ${share}) {
        let state = ${states}[${stateOf(dim, `${first} + start + u`, 'own')} + ${vectors}];
        let weight = exp(state.x - m);
        weights[own * ${merged} + u] = weight;
        l = fma(weight, state.y, l);
      }
      workgroupBarrier();
      ${each(
        rounds,
        j => `{
      ${place(j)}
      for (var u = slot; u < select(0u, some, slot < ${slots}); u += ${slots * ahead}) {
        ${each(ahead, k => `let u${k} = min(u + ${k * slots}, some - 1); let o${k} = ${states}[${stateOf(dim, `${first} + start + u${k}`, 'g')} + n % ${vectors}];`)}
        ${each(ahead, k => `sum${j} = fma(vec4f(select(0.0, weights[g * ${merged} + u${k}], u + ${k * slots} < some)), o${k}, sum${j});`)}
      }
      }`,
      )}
    }
    for (var turn = 0u; turn < ${slots}; turn++) {
      workgroupBarrier();
      if (slot == turn) {
        ${each(
          rounds,
          j =>
            `${j > 0 || lanes < all ? `if (lane + ${j * lanes} < ${all}) ` : ''}{ ${place(j)} ${
              dim % 4 === 0
                ? `${to}[n] += sum${j};`
                : `for (var k = 4 * (n % ${vectors}); k < min(${dim}u, 4 * (n % ${vectors}) + 4); k++) { ${at(to, `g * ${dim} + k`)} += sum${j}[k % 4]; }`
            } }`,
        )}
      }
    }
  }`;
  };
  return {
    name: `finish ${domainName(d)}${int8 ? ' int8' : ''} ${crowd}`,
    params: ['table', 'rows'],
    buffers: [
      'data: array<u32>',
      'states: array<vec4f>',
      'halves: array<vec4f>',
      ...tables(d, D),
      'write out: array<f32>',
      ...(int8 ? int8Buffers : []),
    ],
    size: SIZE,
    body: /* wgsl */ `
${int8 ? toInt8(SIZE) : ''}
${overHead(G)}
${rowsOf('x', G * C)}
${rowsOf('y', G * D)}
var<workgroup> weights: array<f32, ${G * merged}>;
var<workgroup> totals: array<f32, ${G}>;
${d.matrix ? multiply('back', C, D, G, d.perHead, terms) : ''}
fn main(group: vec3u, lane: u32) {
  let at = p.table + p.rows + ${FINISH} * group.y;
  let row = data[at];
  let kv = group.x * ${G} / ${heads / kvHeads};
  let own = min(lane / ${share}, ${G - 1}u);
  let part = lane % ${share};
  let live = lane < ${share * G};
  var m = -3e38;
  ${most('states', C, 'data[at + 1]', 'data[at + 2]')}
  ${most('halves', D, 'data[at + 3]', 'data[at + 4]')}
  m = over_head(lane, m, false);
  var l = 0.0;
  ${merge('states', C, 'data[at + 1]', 'data[at + 2]', 'x')}
  workgroupBarrier();
  ${
    d.mean
      ? `let sealed = over_head(lane, l, true);
  if (part == 0 && live) { totals[own] = sealed; }`
      : ''
  }
  ${d.matrix ? 'back(kv, lane);' : ''}
  ${
    d.matrix
      ? ''
      : `for (var i = lane; i < ${Math.ceil((G * D) / 4)}; i += ${SIZE}) { y[i] = x[i]; }
  workgroupBarrier();`
  }
  ${d.mean ? `for (var i = lane; i < ${G * D}; i += ${SIZE}) { ${at('y', 'i')} = fma(totals[i / ${D}], mean[kv * ${D} + i % ${D}], ${at('y', 'i')}); }` : ''}
  ${merge('halves', D, 'data[at + 3]', 'data[at + 4]', 'y')}
  let all = over_head(lane, l, true);
  if (part == 0 && live) { totals[own] = all; }
  workgroupBarrier();
  let start = (row * ${heads} + group.x * ${G}) * ${D};
  for (var i = lane; i < ${G * D}; i += ${SIZE}) {
    let value = ${at('y', 'i')} / totals[i / ${D}];
    ${at('y', 'i')} = value;
    out[start + i] = value;
  }
  ${
    int8
      ? `workgroupBarrier();
  ${each(Math.ceil((G * D) / 4 / SIZE), n => `to_int8(y[min(lane + ${n * SIZE}, ${(G * D) / 4 - 1}u)], start / 4 + lane + ${n * SIZE}, lane, lane + ${n * SIZE} < ${(G * D) / 4});`)}`
      : ''
  }
}`,
  };
}

/** Rows of k and v into tails and sinks: words row, count, position, slot of the tail, slot of the sinks. */
const APPEND = 5;

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
