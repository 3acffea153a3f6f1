/**
 * Sealing: encodes pages of f16 tails in three steps, each one dispatch for all pages. `transformVectors` transforms
 * vectors into the codec's domain (and `storeMeans` of store-means.ts centers them), `quantizeKernels` computes codes (one
 * word each) and the bits of scalars, `pack` (pack.ts) packs them into the page. Follows codec/ step by step.
 */

import type { PageEncoding, PageLayout, ScalarArray } from '../../page-layout.ts';
import { tailBlockTokens } from '../../visibility.ts';
import { type Kernel, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { ofEveryPage, scalarsPerHead, WORDS_PER_REQUEST } from './pack.ts';
import {
  quantizeColumns,
  quantizeOaken,
  quantizeQuads,
  quantizeSpectrum,
  quantizeWithBook,
  SIZE,
  workgroupSum,
} from './seal-learned.ts';
import type { PageShape } from './shape.ts';
import { float, toF16, toFp8 } from './snippets.ts';
import { encodingTableOffset } from './tables.ts';
import { unroll } from './unroll.ts';

/** Lanes per workgroup, maximum tokens that share a matrix row, and matrix rows prefetched before the first is used. */
const TRANSFORM = { lanes: 128, tokens: 8, prefetch: 8 };

export const tokensPerWorkgroup = ({ pageTokens }: PageShape): number => {
  let tokens = TRANSFORM.tokens;
  while (pageTokens % tokens !== 0) tokens /= 2;
  return tokens;
};

/**
 * y = matrix (x - mean), [head][token][dim], with x rotated back to the start of the page where keys are page-relative.
 * The matrix is transposed, so that reads coalesce. Rows before the first coded one repeat it (kernel/visibility.ts).
 */
export function transformVectors(layout: PageLayout, shape: PageShape): Kernel {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  const { queryMatrix, encodeMatrix, mean, ropeFrequencies } = layout;
  const matrix = encodeMatrix ?? queryMatrix;
  const perHead = matrix && matrix.length > layout.codedDim * D;
  // Rows past headDim belong to a residual.
  const rows = matrix ? matrix.length / D / (perHead ? kvHeads : 1) : D;
  const pairs = ropeFrequencies?.length ?? 0;
  const T = tokensPerWorkgroup(shape);
  const blockTokens = tailBlockTokens(P);
  const prefetch = D % TRANSFORM.prefetch === 0 ? TRANSFORM.prefetch : 1;
  const multiply = `@unroll(t, ${T}) var sum$t = 0.0;
    for (var i = 0u; i < ${D}; i += ${prefetch}) {
      @unroll(k, ${prefetch}) let m$k = matrix[${perHead ? `head * ${rows * D} + ` : ''}(i + $k) * ${rows} + c];
      @unroll(k, ${prefetch}) @unroll(t, ${T}) sum$t = fma(m$k, x[(i + $k) * ${T} + $t], sum$t);
    }
    @unroll(t, ${T}) y[to + $(t * ${D}) + c] = sum$t;`;
  return {
    name: `transform ${D} ${kvHeads} ${P} ${rows} ${matrix ? 1 : 0}${perHead ? 1 : 0}${mean ? 1 : 0} ${pairs}`,
    summary: 'Sealing, step 1: transforms a page of f16 vectors into the domain of the codec.',
    params: u32('table', 'stride', 'side', 'tokens'),
    buffers: [
      readBuffer('data', 'u32'),
      readBuffer('pool', 'u32'),
      ...(matrix ? [readBuffer('matrix', 'f32')] : []),
      ...(mean ? [readBuffer('mean', 'f32')] : []),
      writeBuffer('y', 'f32'),
    ],
    size: TRANSFORM.lanes,
    body: unroll(/* wgsl */ `
var<workgroup> x: array<f32, ${T * D}>;
fn main(group: vec3u, lane: u32) {
  let head = group.y;
  let request = p.table + group.z * ${WORDS_PER_REQUEST};
  let list = data[request];
  let start = data[request + 1];
  let first_coded = data[request + 2];
  ${pairs > 0 ? 'let rotation_at = data[request + 3];' : ''}
  for (var n = lane; n < ${(T * D) / 2}; n += ${TRANSFORM.lanes}) {
    let t = n / ${D / 2};
    let i = n % ${D / 2};
    let row = max(group.x * ${T} + t, first_coded);
    let index = (start + row) % p.tokens;
    let place = (p.side * ${kvHeads} + head) * ${blockTokens} + index % ${blockTokens};
    let block = data[list + index / ${blockTokens}] * p.stride / 4;
    var both = unpack2x16float(pool[block + place * ${D / 2} + i]);
    ${
      pairs > 0
        ? `if (i < ${pairs}) {
      let rotation = vec2f(bitcast<f32>(data[rotation_at + 2 * i]), bitcast<f32>(data[rotation_at + 2 * i + 1]));
      both = vec2f(fma(both.x, rotation.x, both.y * rotation.y), fma(both.y, rotation.x, -(both.x * rotation.y)));
    }`
        : ''
    }
    ${mean ? `both -= vec2f(mean[head * ${D} + 2 * i], mean[head * ${D} + 2 * i + 1]);` : ''}
    x[2 * i * ${T} + t] = both.x;
    x[(2 * i + 1) * ${T} + t] = both.y;
  }
  workgroupBarrier();
  let to = ((group.z * ${kvHeads} + head) * ${P} + group.x * ${T}) * ${D};
  for (var c = lane; c < ${D}; c += ${TRANSFORM.lanes}) {
    ${matrix ? multiply : `@unroll(t, ${T}) y[to + $(t * ${D}) + c] = x[c * ${T} + $t];`}
  }
}`),
  };
}

const buffers = [writeBuffer('y', 'f32'), writeBuffer('codes', 'u32'), writeBuffer('scalars', 'u32')];

/** A scalar as stored: f16 or f32 bits. */
const scalarBits = ({ bytes }: Pick<ScalarArray, 'bytes'>, value: string) =>
  bytes === 2 ? `to_f16(${value})` : `bitcast<u32>(clamp(${value}, -1e38, 1e38))`;

/** The kernels that quantize y to codes and scalars, with their workgroup counts. */
export function quantizeKernels(
  id: string,
  layout: PageLayout,
  shape: PageShape,
): { kernel: Kernel; groups: number[] }[] {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  const kind = layout.encoding;
  const S = scalarsPerHead(layout, shape);
  const kernel = (name: string, body: string): Kernel => ({
    name: `${name} ${id}`,
    summary: 'Sealing, step 2: quantizes vectors to codes and scalars.',
    params: u32('none'),
    buffers: [
      ...buffers,
      ...(kind.kind === 'hybrid' && kind.residual ? [readBuffer('residual', 'f32')] : []),
      ...(hasTables(layout) ? [readBuffer('tables', 'u32')] : []),
    ],
    size: SIZE,
    body: ofEveryPage(`${toF16}\n${toFp8}\n${workgroupSum}\n${body}`, layout, shape),
  });
  const tokens = [P, kvHeads];
  const main = (body: string) => `fn main(group: vec3u, lane: u32) {
  let t = group.x; let head = group.y; let at = (head * ${P} + t) * ${D};
  ${body}\n}`;
  switch (kind.kind) {
    case 'f16':
    case 'fp8':
      return [
        {
          kernel: kernel(
            'quantize floats',
            main(`for (var i = lane; i < ${D}; i += ${SIZE}) { codes[at + i] = to_${kind.kind}(y[at + i]); }`),
          ),
          groups: tokens,
        },
      ];
    case 'q8_0':
    case 'q4_0':
      return [{ kernel: kernel('quantize blocks', main(quantizeBlocks(kind.kind, D, P))), groups: tokens }];
    case 'levels':
      return [{ kernel: kernel('quantize levels', quantizeLevels(kind, shape, S, main)), groups: tokens }];
    case 'hybrid':
      return [{ kernel: kernel('quantize hybrid', quantizeHybrid(kind, shape, S, main)), groups: tokens }];
    case 'affine': {
      const groups = (D * P) / kind.groupSize;
      const ranges = {
        kernel: kernel('quantize ranges', quantizeRanges(kind, shape, S)),
        groups: [Math.ceil(groups / SIZE), kvHeads],
      };
      if (!kind.norms) return [ranges];
      return [{ kernel: kernel('quantize norms', normalizeTokens(kind.norms, shape, S)), groups: [P] }, ranges];
    }
    case 'additive':
      return [{ kernel: kernel('quantize quads', quantizeQuads(shape, encodingTableOffset(layout))), groups: tokens }];
    case 'mixed':
      return [
        { kernel: kernel('quantize columns', quantizeColumns(shape, encodingTableOffset(layout))), groups: tokens },
      ];
    case 'book':
      return [
        {
          kernel: kernel('quantize book', quantizeWithBook(kind, shape, encodingTableOffset(layout))),
          groups: tokens,
        },
      ];
    case 'oaken': {
      const { ranges, lists, values } = quantizeOaken(kind, shape);
      return [
        { kernel: kernel('quantize ranges', ranges), groups: [P] },
        { kernel: kernel('quantize lists', lists), groups: [1] },
        { kernel: kernel('quantize values', values), groups: tokens },
      ];
    }
    case 'spectrum':
      return [
        {
          kernel: kernel('quantize spectrum', quantizeSpectrum(kind, shape, encodingTableOffset(layout))),
          groups: tokens,
        },
      ];
  }
}

/** Encodings with lookup tables; page-relative keys always bind theirs. */
const hasTables = ({ encoding, ropeFrequencies }: PageLayout) =>
  ropeFrequencies !== undefined || ['additive', 'mixed', 'book', 'spectrum'].includes(encoding.kind);

const quantizeBlocks = (type: 'q8_0' | 'q4_0', D: number, P: number) => /* wgsl */ `
  for (var b = lane; b < ${D / 32}; b += ${SIZE}) {
    let first = at + 32 * b;
    var peak = 0.0;
    for (var i = first; i < first + 32; i++) { if (abs(y[i]) > abs(peak)) { peak = y[i]; } }
    ${
      type === 'q8_0'
        ? `let scale = abs(peak) / 127.0;
    for (var i = first; i < first + 32; i++) {
      let q = select(0.0, y[i] / scale, scale > 0);
      codes[i] = bitcast<u32>(i32(sign(q) * floor(abs(q) + 0.5))) & 255;
    }`
        : `let scale = peak / -8.0;
    for (var i = first; i < first + 32; i++) {
      codes[i] = select(u32(clamp(floor(y[i] / scale + 8.5), 0.0, 15.0)), 8u, scale == 0);
    }`
    }
    scalars[(head * ${P} + t) * ${D / 32} + b] = to_f16(scale);
  }`;

/** Declares NAME(x), the code of the nearest level, and NAME_level(code). */
const nearestLevel = (name: string, levels: Float32Array) => {
  const middles = Array.from(levels.subarray(1), (level, i) => (levels[i] + level) / 2);
  return /* wgsl */ `
fn ${name}(x: f32) -> u32 {
  var code = 0u;
  ${middles.map(middle => `code += select(0u, 1u, x >= ${float(middle)});`).join('\n  ')}
  return code;
}
fn ${name}_level(code: u32) -> f32 {
  var levels = array<f32, ${levels.length}>(${[...levels].map(float).join()});
  return levels[code];
}`;
};

type Main = (body: string) => string;

function quantizeLevels(
  kind: PageEncoding & { kind: 'levels' },
  { headDim: D }: PageShape,
  S: number,
  main: Main,
): string {
  const half = kind.levels.length / 2;
  const text = nearestLevel('table', kind.levels);
  const choose = kind.uniform
    ? `bitcast<u32>(i32(clamp(floor(x / ${float(2 * kind.levels[0])}), ${float(-half)}, ${float(half - 1)}))) & ${2 * half - 1}`
    : 'table(x)';
  return `${text}
${main(`
  var squares = 0.0;
  for (var i = lane; i < ${D}; i += ${SIZE}) { squares = fma(y[at + i], y[at + i], squares); }
  let norm = sqrt(total(lane, squares));
  var decoded = 0.0;
  for (var i = lane; i < ${D}; i += ${SIZE}) {
    let x = select(0.0, y[at + i] / norm, norm > 0);
    let code = ${choose};
    codes[at + i] = code;
    decoded = fma(table_level(code), table_level(code), decoded);
  }
  let length = total(lane, decoded);
  if (lane == 0) { scalars[head * ${S} + t] = ${scalarBits(kind.norms, kind.normCorrection ? 'norm / sqrt(length)' : 'norm')}; }`)}`;
}

function quantizeHybrid(
  kind: PageEncoding & { kind: 'hybrid' },
  { headDim: D, pageTokens: P }: PageShape,
  S: number,
  main: Main,
): string {
  const { parts, residual, norms } = kind;
  return `${parts.map(({ levels }, n) => nearestLevel(`table${n}`, levels)).join('\n')}
var<workgroup> remainder: array<f32, ${D}>;
${main(`
  var squares = 0.0;
  for (var i = lane; i < ${D}; i += ${SIZE}) { squares = fma(y[at + i], y[at + i], squares); }
  let norm = sqrt(total(lane, squares));
  squares = 0.0;
  let to = 2 * at;
  for (var i = lane; i < ${D}; i += ${SIZE}) {
    let x = select(0.0, y[at + i] / norm, norm > 0);
    let fine = i < ${parts[0].endDim};
    let code = select(table1(x), table0(x), fine);
    codes[to + i] = code;
    remainder[i] = norm * (x - select(table1_level(code % ${parts[1].levels.length}), table0_level(code), fine));
    squares = fma(remainder[i], remainder[i], squares);
  }
  let remainder_norm = sqrt(total(lane, squares));
  if (lane == 0) {
    scalars[head * ${S} + t] = ${scalarBits(norms, 'norm')};
    scalars[head * ${S} + ${P} + t] = ${scalarBits(residual?.norms ?? norms, 'remainder_norm')};
  }
  ${
    residual
      ? `for (var c = lane; c < ${D}; c += ${SIZE}) {
    var sum = 0.0;
    for (var i = 0u; i < ${D}; i++) { sum = fma(residual[c * ${D} + i], remainder[i], sum); }
    codes[to + ${D} + c] = select(0u, 1u, sum >= 0);
  }`
      : ''
  }`)}`;
}

/** The norm of each token, per head or over all heads; y is divided by the norm as stored. */
function normalizeTokens(
  norms: { per: 'head' | 'page' },
  { headDim: D, kvHeads, pageTokens: P }: PageShape,
  S: number,
): string {
  return /* wgsl */ `
fn main(group: vec3u, lane: u32) {
  let t = group.x;
  var sums = array<f32, ${kvHeads}>();
  var all = 0.0;
  for (var head = 0u; head < ${kvHeads}; head++) {
    var squares = 0.0;
    let at = (head * ${P} + t) * ${D};
    for (var i = lane; i < ${D}; i += ${SIZE}) { squares = fma(y[at + i], y[at + i], squares); }
    sums[head] = total(lane, squares);
    all += sums[head];
  }
  for (var head = 0u; head < ${kvHeads}; head++) {
    let bits = to_f16(sqrt(${norms.per === 'page' ? 'all' : 'sums[head]'}));
    let stored = unpack2x16float(bits).x;
    let at = (head * ${P} + t) * ${D};
    for (var i = lane; i < ${D}; i += ${SIZE}) { y[at + i] = select(0.0, y[at + i] / stored, stored > 0); }
    if (lane == 0) { scalars[head * ${S} + t] = bits; }
  }
}`;
}

/** One group per invocation: its range, then its codes relative to the range as stored. */
function quantizeRanges(
  kind: PageEncoding & { kind: 'affine' },
  { headDim: D, pageTokens: P }: PageShape,
  S: number,
): string {
  const { groupSize, axis } = kind;
  const maxCode = 2 ** kind.codes.bits - 1;
  const [first, stride] =
    axis === 'channel' ? [`(g / ${D}) * ${groupSize * D} + g % ${D}`, D] : [`g * ${groupSize}`, 1];
  return /* wgsl */ `
fn main(index: vec3u, lane: u32) {
  let g = index.x * ${SIZE} + lane;
  let head = index.y;
  if (g >= ${(D * P) / groupSize}) { return; }
  let first = head * ${P * D} + ${first};
  var low = y[first];
  var high = low;
  for (var n = 1u; n < ${groupSize}; n++) {
    low = min(low, y[first + n * ${stride}]);
    high = max(high, y[first + n * ${stride}]);
  }
  let range = head * ${S} + ${P} + 2 * g;
  scalars[range] = to_f16(low);
  scalars[range + 1] = to_f16((high - low) / ${float(maxCode)});
  let bottom = unpack2x16float(scalars[range]).x;
  let step = unpack2x16float(scalars[range + 1]).x;
  for (var n = 0u; n < ${groupSize}; n++) {
    let at = first + n * ${stride};
    codes[at] = select(u32(clamp(floor((y[at] - bottom) / step + 0.5), 0.0, ${float(maxCode)})), 0u, step == 0);
  }
}`;
}
