/**
 * Sealing: a page of the f16 tail into a codec's bytes, in three steps. `rotate` takes the vectors into the codec's
 * domain, `code` makes a word a code and the bits of every scalar, `pack` (pack.ts) puts them together, a word of the
 * page an invocation. Follows codec/ step by step.
 */

import type { Fragment, PageFragment, ScalarsFragment } from '../../fragment.ts';
import type { Kernel } from '../gpu.ts';
import { scalarsOf } from './pack.ts';
import { codeBook, codeColumns, codeOaken, codeQuads, codeSpectrum, SIZE } from './seal-learned.ts';
import type { PageShape } from './shape.ts';
import { ownTable } from './tables.ts';
import { each, float, toF16, toFp8 } from './text.ts';

/** Lanes of `rotate`, the most tokens that share what it reads of the matrix, and rows of it that are waited for together. */
const ROTATE = { lanes: 128, tokens: 8, ahead: 8 };

/** Tokens that a workgroup of `rotate` takes. */
export const rotatedAtOnce = ({ pageTokens }: PageShape): number => {
  let tokens = ROTATE.tokens;
  while (pageTokens % tokens !== 0) tokens /= 2;
  return tokens;
};

/**
 * y = matrix (turned x - mean), [head][token][dim]; a workgroup some tokens of a head. The matrix comes transposed, so that
 * neighbours read neighbours. Rows before `p.first` are read from it (kernel/visibility.ts).
 */
export function rotate(fragment: Fragment, shape: PageShape): Kernel {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  const { matrix, encodeMatrix, mean, turn } = fragment;
  const used = encodeMatrix ?? matrix;
  const perHead = used && used.length > fragment.codedDim * D;
  // Rows past headDim are a residual's.
  const rows = used ? used.length / D / (perHead ? kvHeads : 1) : D;
  const pairs = turn?.length ?? 0;
  const T = rotatedAtOnce(shape);
  const ahead = D % ROTATE.ahead === 0 ? ROTATE.ahead : 1;
  const multiply = `${each(T, t => `var sum${t} = 0.0;`, ' ')}
    for (var i = 0u; i < ${D}; i += ${ahead}) {
      ${each(ahead, k => `let m${k} = matrix[${perHead ? `head * ${rows * D} + ` : ''}(i + ${k}) * ${rows} + c];`)}
      ${each(ahead, k => each(T, t => `sum${t} = fma(m${k}, x[(i + ${k}) * ${T} + ${t}], sum${t});`, ' '))}
    }
    ${each(T, t => `y[to + ${t * D} + c] = sum${t};`, ' ')}`;
  return {
    name: `rotate ${D} ${kvHeads} ${P} ${rows} ${used ? 1 : 0}${perHead ? 1 : 0}${mean ? 1 : 0} ${pairs}`,
    params: ['slot', 'stride', 'side', 'tokens', 'start', 'first', 'turn'],
    buffers: [
      'data: array<u32>',
      'pool: array<u32>',
      ...(used ? ['matrix: array<f32>'] : []),
      ...(mean ? ['mean: array<f32>'] : []),
      'write y: array<f32>',
    ],
    size: ROTATE.lanes,
    body: /* wgsl */ `
var<workgroup> x: array<f32, ${T * D}>;
fn main(group: vec3u, lane: u32) {
  let head = group.y;
  let first = p.slot * p.stride / 4 + (p.side * ${kvHeads} + head) * p.tokens * ${D / 2};
  for (var n = lane; n < ${(T * D) / 2}; n += ${ROTATE.lanes}) {
    let t = n / ${D / 2};
    let i = n % ${D / 2};
    let row = max(group.x * ${T} + t, p.first);
    var both = unpack2x16float(pool[first + (p.start + row) % p.tokens * ${D / 2} + i]);
    ${
      pairs > 0
        ? `if (i < ${pairs}) {
      let turn = vec2f(bitcast<f32>(data[p.turn + 2 * i]), bitcast<f32>(data[p.turn + 2 * i + 1]));
      both = vec2f(fma(both.x, turn.x, both.y * turn.y), fma(both.y, turn.x, -(both.x * turn.y)));
    }`
        : ''
    }
    ${mean ? `both -= vec2f(mean[head * ${D} + 2 * i], mean[head * ${D} + 2 * i + 1]);` : ''}
    x[2 * i * ${T} + t] = both.x;
    x[(2 * i + 1) * ${T} + t] = both.y;
  }
  workgroupBarrier();
  let to = (head * ${P} + group.x * ${T}) * ${D};
  for (var c = lane; c < ${D}; c += ${ROTATE.lanes}) {
    ${used ? multiply : each(T, t => `y[to + ${t * D} + c] = x[c * ${T} + ${t}];`, ' ')}
  }
}`,
  };
}

/** Sums over the workgroup; every lane must come here. */
const sumOf = /* wgsl */ `
var<workgroup> parts: array<f32, ${SIZE}>;
fn total(lane: u32, x: f32) -> f32 {
  workgroupBarrier();
  parts[lane] = x;
  for (var n = ${SIZE / 2}u; n > 0; n /= 2) {
    workgroupBarrier();
    if (lane < n) { parts[lane] += parts[lane + n]; }
  }
  workgroupBarrier();
  return parts[0];
}`;

const buffers = ['write y: array<f32>', 'write codes: array<u32>', 'write scalars: array<u32>'];

/** Bits of a scalar as it is stored. */
const bitsOf = ({ bytes }: Pick<ScalarsFragment, 'bytes'>, value: string) =>
  bytes === 2 ? `to_f16(${value})` : `bitcast<u32>(clamp(${value}, -1e38, 1e38))`;

/** The kernels that make codes and scalars out of y, and the groups each is dispatched in. */
export function code(id: string, fragment: Fragment, shape: PageShape): { kernel: Kernel; groups: number[] }[] {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  const kind = fragment.page;
  const S = scalarsOf(fragment, shape);
  const kernel = (name: string, body: string): Kernel => ({
    name: `${name} ${id}`,
    params: ['none'],
    buffers: [
      ...buffers,
      ...(kind.kind === 'hybrid' && kind.residual ? ['residual: array<f32>'] : []),
      ...(hasTables(fragment) ? ['tables: array<u32>'] : []),
    ],
    size: SIZE,
    body: `${toF16}\n${toFp8}\n${sumOf}\n${body}`,
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
            'code floats',
            main(`for (var i = lane; i < ${D}; i += ${SIZE}) { codes[at + i] = to_${kind.kind}(y[at + i]); }`),
          ),
          groups: tokens,
        },
      ];
    case 'q8_0':
    case 'q4_0':
      return [{ kernel: kernel('code blocks', main(codeBlocks(kind.kind, D, P))), groups: tokens }];
    case 'levels':
      return [{ kernel: kernel('code levels', codeLevels(kind, shape, S, main)), groups: tokens }];
    case 'hybrid':
      return [{ kernel: kernel('code hybrid', codeHybrid(kind, shape, S, main)), groups: tokens }];
    case 'affine': {
      const groups = (D * P) / kind.group;
      const ranges = {
        kernel: kernel('code ranges', codeRanges(kind, shape, S)),
        groups: [Math.ceil(groups / SIZE), kvHeads],
      };
      if (!kind.norms) return [ranges];
      return [{ kernel: kernel('code norms', codeNorms(kind.norms, shape, S)), groups: [P] }, ranges];
    }
    case 'additive':
      return [{ kernel: kernel('code quads', codeQuads(shape, ownTable(fragment))), groups: tokens }];
    case 'mixed':
      return [{ kernel: kernel('code columns', codeColumns(shape, ownTable(fragment))), groups: tokens }];
    case 'book':
      return [{ kernel: kernel('code book', codeBook(kind, shape, ownTable(fragment))), groups: tokens }];
    case 'oaken': {
      const { ranges, lists, values } = codeOaken(kind, shape);
      return [
        { kernel: kernel('code ranges', ranges), groups: [P] },
        { kernel: kernel('code lists', lists), groups: [1] },
        { kernel: kernel('code values', values), groups: tokens },
      ];
    }
    case 'spectrum':
      return [{ kernel: kernel('code spectrum', codeSpectrum(kind, shape, ownTable(fragment))), groups: tokens }];
  }
}

/** Kinds that look things up; and whatever is turned has its tables bound too. */
const hasTables = ({ page, turn }: Fragment) =>
  turn !== undefined || ['additive', 'mixed', 'book', 'spectrum'].includes(page.kind);

const codeBlocks = (type: 'q8_0' | 'q4_0', D: number, P: number) => /* wgsl */ `
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

/** How many of the midpoints between the levels are not above x. */
const nearest = (name: string, levels: Float32Array) => {
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

function codeLevels(kind: PageFragment & { kind: 'levels' }, { headDim: D }: PageShape, S: number, main: Main): string {
  const half = kind.levels.length / 2;
  const text = nearest('table', kind.levels);
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
  if (lane == 0) { scalars[head * ${S} + t] = ${bitsOf(kind.norms, kind.corrected ? 'norm / sqrt(length)' : 'norm')}; }`)}`;
}

function codeHybrid(
  kind: PageFragment & { kind: 'hybrid' },
  { headDim: D, pageTokens: P }: PageShape,
  S: number,
  main: Main,
): string {
  const { parts, residual, norms } = kind;
  return `${parts.map(({ levels }, n) => nearest(`table${n}`, levels)).join('\n')}
var<workgroup> left: array<f32, ${D}>;
${main(`
  var squares = 0.0;
  for (var i = lane; i < ${D}; i += ${SIZE}) { squares = fma(y[at + i], y[at + i], squares); }
  let norm = sqrt(total(lane, squares));
  squares = 0.0;
  let to = 2 * at;
  for (var i = lane; i < ${D}; i += ${SIZE}) {
    let x = select(0.0, y[at + i] / norm, norm > 0);
    let fine = i < ${parts[0].end};
    let code = select(table1(x), table0(x), fine);
    codes[to + i] = code;
    left[i] = norm * (x - select(table1_level(code % ${parts[1].levels.length}), table0_level(code), fine));
    squares = fma(left[i], left[i], squares);
  }
  let rest = sqrt(total(lane, squares));
  if (lane == 0) {
    scalars[head * ${S} + t] = ${bitsOf(norms, 'norm')};
    scalars[head * ${S} + ${P} + t] = ${bitsOf(residual?.norms ?? norms, 'rest')};
  }
  ${
    residual
      ? `for (var c = lane; c < ${D}; c += ${SIZE}) {
    var sum = 0.0;
    for (var i = 0u; i < ${D}; i++) { sum = fma(residual[c * ${D} + i], left[i], sum); }
    codes[to + ${D} + c] = select(0u, 1u, sum >= 0);
  }`
      : ''
  }`)}`;
}

/** A token's norm, of each head or over all of them; y becomes y over the norm as stored. */
function codeNorms(
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

/** A group an invocation: its range, then its codes against the range as stored. */
function codeRanges(
  kind: PageFragment & { kind: 'affine' },
  { headDim: D, pageTokens: P }: PageShape,
  S: number,
): string {
  const { group, axis } = kind;
  const most = 2 ** kind.codes.bits - 1;
  const [first, stride] = axis === 'channel' ? [`(g / ${D}) * ${group * D} + g % ${D}`, D] : [`g * ${group}`, 1];
  return /* wgsl */ `
fn main(place: vec3u, lane: u32) {
  let g = place.x * ${SIZE} + lane;
  let head = place.y;
  if (g >= ${(D * P) / group}) { return; }
  let first = head * ${P * D} + ${first};
  var low = y[first];
  var high = low;
  for (var n = 1u; n < ${group}; n++) {
    low = min(low, y[first + n * ${stride}]);
    high = max(high, y[first + n * ${stride}]);
  }
  let range = head * ${S} + ${P} + 2 * g;
  scalars[range] = to_f16(low);
  scalars[range + 1] = to_f16((high - low) / ${float(most)});
  let bottom = unpack2x16float(scalars[range]).x;
  let step = unpack2x16float(scalars[range + 1]).x;
  for (var n = 0u; n < ${group}; n++) {
    let at = first + n * ${stride};
    codes[at] = select(u32(clamp(floor((y[at] - bottom) / step + 0.5), 0.0, ${float(most)})), 0u, step == 0);
  }
}`;
}
