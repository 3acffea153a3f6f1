/**
 * A small WASM emitter. Kernels are TypeScript functions that generate code for the loaded model (head dimension, query
 * heads per KV head, page size, relaxed SIMD or not) with unrolled inner loops.
 *
 * An expression is the bytes that push one value on the stack, tagged with its type. Only types are checked here; the
 * engine validates the module.
 */
export type Type = 'i32' | 'f32' | 'v128';

export interface Expr<T extends Type> {
  readonly type: T;
  readonly code: readonly number[];
}
export type I32 = Expr<'i32'> | number;
export type F32 = Expr<'f32'>;
export type V128 = Expr<'v128'>;

export interface Local<T extends Type> extends Expr<T> {
  readonly index: number;
}

export function unsignedLeb128(value: number): number[] {
  const out: number[] = [];
  let n = value >>> 0;
  do {
    const low = n & 127;
    n >>>= 7;
    out.push(n ? low | 128 : low);
  } while (n);
  return out;
}

function signedLeb128(value: number): number[] {
  const out: number[] = [];
  let n = value | 0;
  for (;;) {
    const low = n & 127;
    n >>= 7;
    if ((n === 0 && !(low & 64)) || (n === -1 && low & 64)) return [...out, low];
    out.push(low | 128);
  }
}

const floatBytes = (x: number) => [...new Uint8Array(Float32Array.of(x).buffer)];
export const codeOf = (x: I32 | F32 | V128): readonly number[] =>
  typeof x === 'number' ? [0x41, ...signedLeb128(x)] : x.code;
const expr = <T extends Type>(type: T, ...parts: (readonly number[])[]): Expr<T> => ({
  type,
  // Not flat(), which is many times slower: a model needs tens of thousands of expressions.
  code: ([] as number[]).concat(...parts),
});

const i32Op =
  (...op: number[]) =>
  (a: I32, b: I32) =>
    expr('i32', codeOf(a), codeOf(b), op);
const f32Op = (op: number) => (a: F32, b: F32) => expr('f32', a.code, b.code, [op]);
const f32Test = (op: number) => (a: F32, b: F32) => expr('i32', a.code, b.code, [op]);
const f32Unary = (op: number) => (a: F32) => expr('f32', a.code, [op]);
const load =
  <T extends Type>(type: T, ...op: number[]) =>
  (address: I32, offset = 0) =>
    expr(type, codeOf(address), op, [0], unsignedLeb128(offset));

/** A statement: bytes that leave the stack unchanged. */
export type Code = readonly number[];

const store =
  <V extends I32 | F32 | V128>(...op: number[]) =>
  (address: I32, value: V, offset = 0): Code => [
    ...codeOf(address),
    ...codeOf(value),
    ...op,
    0,
    ...unsignedLeb128(offset),
  ];

export const i32 = {
  add: i32Op(0x6a),
  sub: i32Op(0x6b),
  mul: i32Op(0x6c),
  divU: i32Op(0x6e),
  remU: i32Op(0x70),
  and: i32Op(0x71),
  or: i32Op(0x72),
  shl: i32Op(0x74),
  shrS: i32Op(0x75),
  shrU: i32Op(0x76),
  eqz: (a: I32) => expr('i32', codeOf(a), [0x45]),
  ltS: i32Op(0x48),
  gtS: i32Op(0x4a),
  geS: i32Op(0x4e),
  geU: i32Op(0x4f),
  load: load('i32', 0x28),
  load8U: load('i32', 0x2d),
  load16U: load('i32', 0x2f),
  /** Loads a byte and drops it; V8 does not eliminate the load. */
  prefetch: (address: I32, offset = 0): Code => [...i32.load8U(address, offset).code, 0x1a],
  store: store<I32>(0x36),
  store8: store<I32>(0x3a),
  store16: store<I32>(0x3b),
  bits: (x: F32) => expr('i32', x.code, [0xbc]),
  /** Saturates; NaN becomes 0. */
  fromF32: (x: F32) => expr('i32', x.code, [0xfc, 0x00]),
  select: (condition: I32, yes: I32, no: I32) => expr('i32', codeOf(yes), codeOf(no), codeOf(condition), [0x1b]),
  min: (a: I32, b: I32): Expr<'i32'> => i32.select(i32.ltS(a, b), a, b),
  max: (a: I32, b: I32): Expr<'i32'> => i32.select(i32.gtS(a, b), a, b),
};

/**
 * The address of element i of an array, `stride` bytes each. For more dimensions, each further one is given by its size
 * and index: `index(base, stride, row, [columns, column])`.
 */
export const index = (base: I32, stride: I32, i: I32, ...inner: [size: I32, index: I32][]) =>
  i32.add(
    base,
    i32.mul(
      inner.reduce((outer, [size, j]) => i32.add(i32.mul(outer, size), j), i),
      stride,
    ),
  );

export const f32 = {
  const: (x: number) => expr('f32', [0x43, ...floatBytes(x)]),
  add: f32Op(0x92),
  sub: f32Op(0x93),
  mul: f32Op(0x94),
  div: f32Op(0x95),
  min: f32Op(0x96),
  max: f32Op(0x97),
  eq: f32Test(0x5b),
  lt: f32Test(0x5d),
  gt: f32Test(0x5e),
  abs: f32Unary(0x8b),
  neg: f32Unary(0x8c),
  floor: f32Unary(0x8e),
  sqrt: f32Unary(0x91),
  fromI32: (x: I32) => expr('f32', codeOf(x), [0xb2]),
  fromBits: (x: I32) => expr('f32', codeOf(x), [0xbe]),
  load: load('f32', 0x2a),
  store: store<F32>(0x38),
  select: (condition: I32, yes: F32, no: F32) => expr('f32', yes.code, no.code, codeOf(condition), [0x1b]),
};

const simd = (op: number) => [0xfd, ...unsignedLeb128(op)];
const binary = (op: number) => (a: V128, b: V128) => expr('v128', a.code, b.code, simd(op));
const unary = (op: number) => (a: V128) => expr('v128', a.code, simd(op));
const ternary = (op: number) => (a: V128, b: V128, c: V128) => expr('v128', a.code, b.code, c.code, simd(op));
const shift = (op: number) => (a: V128, by: I32) => expr('v128', a.code, codeOf(by), simd(op));
const vload = (op: number) => load('v128', ...simd(op));
const constant = (bytes: ArrayBufferLike) => expr('v128', simd(12), [...new Uint8Array(bytes)]);

export const v128 = {
  load: vload(0),
  load8x8S: vload(1),
  load16x4S: vload(3),
  load16x4U: vload(4),
  load32Splat: vload(9),
  load64Splat: vload(10),
  load32Zero: vload(92),
  store: store<V128>(...simd(11)),
  /** The low 64 bits. */
  store64: (address: I32, value: V128, offset = 0): Code => [...store(...simd(91))(address, value, offset), 0],
  store32Lane: (address: I32, value: V128, lane: number, offset = 0): Code => [
    ...store(...simd(90))(address, value, offset),
    lane,
  ],
  and: binary(78),
  or: binary(80),
  xor: binary(81),
  /** Bytes by index: 0 to 15 select from a, 16 to 31 from b. */
  shuffle: (a: V128, b: V128, bytes: readonly number[]) => expr('v128', a.code, b.code, simd(13), bytes),
  zero: constant(new ArrayBuffer(16)),
};

/** Byte indices that shuffle 32-bit or 16-bit lanes. */
export const lanes32 = (...lanes: number[]) => lanes.flatMap(lane => [0, 1, 2, 3].map(byte => 4 * lane + byte));
export const lanes16 = (...lanes: number[]) => lanes.flatMap(lane => [0, 1].map(byte => 2 * lane + byte));

export const i8x16 = {
  add: binary(110),
  const: (...x: number[]) => constant(Int8Array.from(x.length === 1 ? Array(16).fill(x[0]) : x).buffer),
  swizzle: binary(14),
  relaxedSwizzle: binary(0x100),
  sub: binary(113),
  narrowS: binary(101),
  narrowU: binary(102),
};

export const i16x8 = {
  const: (...x: number[]) => constant(Int16Array.from(x.length === 1 ? Array(8).fill(x[0]) : x).buffer),
  add: binary(142),
  mul: binary(149),
  minS: binary(150),
  maxS: binary(152),
  sub: binary(145),
  shl: shift(139),
  shrS: shift(140),
  shrU: shift(141),
  narrowS: binary(133),
  narrowU: binary(134),
  extendLowS: unary(135),
  extendHighS: unary(136),
  extmulLowS: binary(156),
  extmulHighS: binary(157),
  /** a b / 2^15, rounded. The relaxed version gives the same unless both are -2^15. */
  q15mulr: binary(130),
  relaxedQ15mulr: binary(0x111),
  /** Products of int8 and 7-bit unsigned values, added in pairs: exact if the second factor is 0 to 127. */
  relaxedDot: binary(0x112),
};

export const i32x4 = {
  splat: (x: I32) => expr('v128', codeOf(x), simd(17)),
  const: (...x: number[]) => constant(Int32Array.from(x.length === 1 ? Array(4).fill(x[0]) : x).buffer),
  add: binary(174),
  gtS: binary(59),
  sub: binary(177),
  shl: shift(171),
  shrS: shift(172),
  shrU: shift(173),
  minS: binary(182),
  maxS: binary(184),
  /** Products of int16, added in pairs. */
  dot: binary(186),
  extendLowS: unary(167),
  extendHighS: unary(168),
  extendLowU: unary(169),
  extendHighU: unary(170),
  /** Products of int8 and 7-bit unsigned values, added in fours to c: exact if the second factor is 0 to 127. */
  relaxedDotAdd: ternary(0x113),
  fromF32: unary(248),
  /** Rounds toward zero; out-of-range results depend on the machine. */
  relaxedTrunc: unary(0x101),
  lane: (a: V128, lane: number) => expr('i32', a.code, simd(27), [lane]),
};

export const f32x4 = {
  const: (...x: number[]) => constant(Float32Array.from(x.length === 1 ? Array(4).fill(x[0]) : x).buffer),
  splat: (x: F32) => expr('v128', x.code, simd(19)),
  add: binary(228),
  sub: binary(229),
  mul: binary(230),
  div: binary(231),
  /** pmin and pmax: one instruction each on every machine. Inputs must not be NaN. */
  min: binary(234),
  max: binary(235),
  abs: unary(224),
  neg: unary(225),
  floor: unary(104),
  gt: binary(68),
  ge: binary(70),
  fromI32: unary(250),
  relaxedMadd: ternary(0x105),
  lane: (a: V128, lane: number) => expr('f32', a.code, simd(31), [lane]),
};
