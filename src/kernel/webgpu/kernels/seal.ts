/**
 * Sealing: a page of the f16 tail into a codec's bytes, in three steps. `rotate` takes the vectors into the codec's
 * domain, `code` makes a word a code and the bits of every scalar, `pack` puts them together, a word of the page an
 * invocation. Follows codec/ step by step.
 */
import type { Fragment, PageFragment, ScalarsFragment } from '../../fragment.ts';
import type { Kernel } from '../gpu.ts';
import { type GridShape, gridBytes, writeGrid } from './grid.ts';
import type { PageShape } from './read.ts';
import { codeBook, codeColumns, codeOaken, codeQuads, codeSpectrum, oakenScalars, SIZE } from './seal-learned.ts';
import { ownTable } from './tables.ts';
import { float, toF16, toFp8 } from './text.ts';

/** Scalars of a head: norms, ranges, scales of blocks. */
export function scalarsOf({ page }: Fragment, { headDim, pageTokens: P }: PageShape): number {
  if (page.kind === 'levels') return P;
  if (page.kind === 'hybrid') return 2 * P;
  if (page.kind === 'affine') return P + (2 * headDim * P) / page.group;
  if (page.kind === 'oaken') return oakenScalars(headDim, P).all;
  if (page.kind === 'spectrum') return P;
  return (P * headDim) / 32;
}

/** y = matrix (turned x - mean), [head][token][dim]; a workgroup a token and head. */
export function rotate(fragment: Fragment, { headDim: D, kvHeads, pageTokens: P }: PageShape): Kernel {
  const { matrix, encodeMatrix, mean, turn } = fragment;
  const used = encodeMatrix ?? matrix;
  const perHead = used && used.length > fragment.codedDim * D;
  // Rows past headDim are a residual's.
  const rows = used ? used.length / D / (perHead ? kvHeads : 1) : D;
  const pairs = turn?.length ?? 0;
  return {
    name: `rotate ${D} ${kvHeads} ${P} ${rows} ${used ? 1 : 0}${perHead ? 1 : 0}${mean ? 1 : 0} ${pairs}`,
    params: ['slot', 'stride', 'side', 'tokens', 'start', 'turn'],
    buffers: [
      'data: array<u32>',
      'pool: array<u32>',
      ...(used ? ['matrix: array<f32>'] : []),
      ...(mean ? ['mean: array<f32>'] : []),
      'write y: array<f32>',
    ],
    size: SIZE,
    body: /* wgsl */ `
var<workgroup> x: array<f32, ${D}>;
fn main(group: vec3u, lane: u32) {
  let t = group.x;
  let head = group.y;
  let origin = p.slot * p.stride / 4 + ((p.side * ${kvHeads} + head) * p.tokens + (p.start + t) % p.tokens) * ${D / 2};
  for (var i = lane; i < ${D / 2}; i += ${SIZE}) {
    var both = unpack2x16float(pool[origin + i]);
    ${
      pairs > 0
        ? `if (i < ${pairs}) {
      let turn = vec2f(bitcast<f32>(data[p.turn + 2 * i]), bitcast<f32>(data[p.turn + 2 * i + 1]));
      both = vec2f(fma(both.x, turn.x, both.y * turn.y), fma(both.y, turn.x, -(both.x * turn.y)));
    }`
        : ''
    }
    ${mean ? `both -= vec2f(mean[head * ${D} + 2 * i], mean[head * ${D} + 2 * i + 1]);` : ''}
    x[2 * i] = both.x;
    x[2 * i + 1] = both.y;
  }
  workgroupBarrier();
  let to = (head * ${P} + t) * ${D};
  for (var c = lane; c < ${D}; c += ${SIZE}) {
    ${
      used
        ? `var sum = 0.0;
    for (var i = 0u; i < ${D}; i++) { sum = fma(matrix[${perHead ? `head * ${rows * D} + ` : ''}c * ${D} + i], x[i], sum); }
    y[to + c] = sum;`
        : 'y[to + c] = x[c];'
    }
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

/** A word of the page an invocation. */
export function pack(id: string, fragment: Fragment, pageBytes: number, shape: PageShape): Kernel {
  const { headDim: D, pageTokens: P } = shape;
  const { sharedBytes, blockBytes, page } = fragment;
  const S = scalarsOf(fragment, shape);
  const { text, fields } = fieldsOf(fragment, pageBytes, shape, S);
  const shared = fields.filter(({ shared }) => shared);
  const own = fields.filter(({ shared }) => !shared);
  const choose = (some: Field[], n: string) =>
    some
      .map(
        ({ offset, bytes, at }) =>
          `if (${n} >= ${offset} && ${n} < ${offset + bytes}) { return ${at(`(${n} - ${offset})`)}; }`,
      )
      .join('\n  ');
  return {
    name: `pack ${id} ${pageBytes}`,
    params: ['page'],
    buffers: [
      'codes: array<u32>',
      'scalars: array<u32>',
      ...(page.kind === 'mixed' ? ['tables: array<u32>'] : []),
      'write pool: array<u32>',
    ],
    size: SIZE,
    body: /* wgsl */ `
fn code(head: u32, t: u32, i: u32) -> u32 { return codes[(head * ${P} + t) * ${page.kind === 'hybrid' ? 2 * D : D} + i]; }
fn scalar2(n: u32, at: u32) -> u32 { return (scalars[at + n / 2] >> (8 * (n & 1))) & 255; }
fn scalar4(n: u32, at: u32) -> u32 { return (scalars[at + n / 4] >> (8 * (n & 3))) & 255; }
${text}
fn page_byte(n: u32) -> u32 {
  if (n >= ${pageBytes}) { return 0; }
  let head = 0u;
  ${choose(shared, 'n')}
  ${blockBytes > 0 ? `return block_byte((n - ${sharedBytes}) % ${blockBytes}, (n - ${sharedBytes}) / ${blockBytes});` : 'return 0;'}
}
fn block_byte(n: u32, head: u32) -> u32 {
  ${choose(own, 'n')}
  return 0;
}
fn main(group: vec3u, lane: u32) {
  let word = group.x * ${SIZE} + lane;
  if (4 * word >= ${pageBytes}) { return; }
  var value = 0u;
  for (var k = 0u; k < 4; k++) { value |= page_byte(4 * word + k) << (8 * k); }
  pool[p.page / 4 + word] = value;
}`,
  };
}

interface Field {
  offset: number;
  bytes: number;
  shared?: boolean;
  /** Its byte n, with `head` at hand. */
  at(n: string): string;
}

function fieldsOf(
  fragment: Fragment,
  pageBytes: number,
  { headDim: D, kvHeads, pageTokens: P }: PageShape,
  S: number,
): { text: string; fields: Field[] } {
  const scalars = ({ offset, bytes }: ScalarsFragment, from = 0): Field => ({
    offset,
    bytes: P * bytes,
    at: n => `scalar${bytes}(${n}, head * ${S} + ${from})`,
  });
  const grid = (name: string, codes: GridShape, code = 'code') => ({
    text: writeGrid(name, codes, code),
    field: { offset: codes.offset, bytes: gridBytes(codes), at: (n: string) => `${name}(${n}, head)` },
  });
  const { page } = fragment;
  switch (page.kind) {
    case 'f16':
    case 'fp8': {
      const bits = page.kind === 'f16' ? 16 : 8;
      const { text, field } = grid('values', { offset: 0, bits, order: 'rows', tokens: P, dims: D });
      return { text, fields: [field] };
    }
    case 'q8_0':
    case 'q4_0': {
      const size = page.kind === 'q8_0' ? 34 : 18;
      const codes =
        page.kind === 'q8_0' ? 'codes[first + r - 2]' : 'codes[first + r - 2] | (codes[first + r + 14] << 4)';
      const text = `fn blocks(n: u32, head: u32) -> u32 {
  let b = head * ${(P * D) / 32} + n / ${size};
  let r = n % ${size};
  let first = 32 * b;
  if (r < 2) { return scalar2(r, b); }
  return ${codes};
}`;
      return { text, fields: [{ offset: 0, bytes: (P * D * size) / 32, at: n => `blocks(${n}, head)` }] };
    }
    case 'levels': {
      const { text, field } = grid('levels', { ...page.codes, tokens: P, dims: D });
      return { text, fields: [field, scalars(page.norms)] };
    }
    case 'hybrid': {
      const made = page.parts.map(({ codes, first, end }, n) => {
        const name = `part${n}`;
        const { text, field } = grid(name, { ...codes, tokens: P, dims: end - first }, `${name}_code`);
        return {
          text: `fn ${name}_code(head: u32, t: u32, i: u32) -> u32 { return code(head, t, i + ${first}); }\n${text}`,
          field,
        };
      });
      const fields = [...made.map(({ field }) => field), scalars(page.norms)];
      const texts = made.map(({ text }) => text);
      if (page.residual) {
        const { text, field } = grid('signs', { ...page.residual.signs, tokens: P, dims: D }, 'sign_code');
        texts.push(`fn sign_code(head: u32, t: u32, i: u32) -> u32 { return code(head, t, i + ${D}); }\n${text}`);
        fields.push(field, scalars(page.residual.norms, P));
      }
      return { text: texts.join('\n'), fields };
    }
    case 'affine': {
      const { text, field } = grid('affine', { ...page.codes, tokens: P, dims: D });
      const ranges: Field = {
        offset: page.ranges,
        bytes: (4 * D * P) / page.group,
        at: n => `scalar2(${n}, head * ${S} + ${P})`,
      };
      const { norms } = page;
      return { text, fields: [field, ranges, ...(norms ? [{ ...scalars(norms), shared: norms.per === 'page' }] : [])] };
    }
    case 'additive': {
      const column = `fn column(head: u32, t: u32, i: u32) -> u32 { return codes[i * ${P} + t]; }`;
      const columns = { offset: 0, bits: 4, order: 'columns', tokens: P, dims: (2 * pageBytes) / P } as const;
      const { text, field } = grid('columns', columns, 'column');
      return { text: `${column}\n${text}`, fields: [{ ...field, shared: true }] };
    }
    case 'mixed': {
      const planes = [4, 2, 1].map(bits => {
        const plane = { offset: 0, bits, order: 'columns', tokens: P, dims: 1 } as const;
        return { bits, bytes: gridBytes(plane), text: writeGrid(`plane${bits}`, plane, `plane${bits}_code`) };
      });
      const text = /* wgsl */ `
var<private> unit: u32;
var<private> shift: u32;
${planes
  .map(
    ({ bits, text }) => `fn plane${bits}_code(head: u32, t: u32, i: u32) -> u32 {
  return (codes[(unit / ${D} * ${P} + t) * ${D} + unit % ${D}] >> shift) & ${2 ** bits - 1};
}
${text}`,
  )
  .join('\n')}
/** The last column that begins at byte n or before it is the one that has it. */
fn columns(n: u32) -> u32 {
  var low = 0u;
  var high = ${kvHeads * D}u;
  while (high - low > 1) {
    let middle = (low + high) / 2;
    if (tables[${ownTable(fragment)} + middle] / 8 <= n) { low = middle; } else { high = middle; }
  }
  unit = low;
  shift = 0;
  let column = tables[${ownTable(fragment)} + low];
  var m = n - column / 8;
  ${planes
    .map(
      ({ bits, bytes }) => `if ((column & ${bits}) != 0) {
    if (m < ${bytes}) { return plane${bits}(m, 0); }
    m -= ${bytes};
    shift += ${bits};
  }`,
    )
    .join('\n  ')}
  return 0;
}`;
      return { text, fields: [{ offset: 0, bytes: pageBytes, shared: true, at: n => `columns(${n})` }] };
    }
    case 'book': {
      const { text, field } = grid('indices', { ...page.codes, tokens: P, dims: D / page.dims });
      return { text, fields: [field] };
    }
    case 'oaken': {
      const { text, field } = grid('nibbles', { ...page.codes, tokens: P, dims: D });
      const at = oakenScalars(D, P);
      const values = kvHeads * P * D;
      const start = `scalar4(n % 4, n / 4 * ${S} + ${at.start})`;
      const counts = /* wgsl */ `
fn starts(n: u32) -> u32 { return ${start}; }
fn counts(n: u32, head: u32) -> u32 {
  let from_word = head * ${S} + ${at.counts} + 2 * n;
  return scalars[from_word] | (scalars[from_word + 1] << 4);
}`;
      return {
        text: `${text}\n${counts}`,
        fields: [
          { offset: page.ranges, bytes: 12 * P, shared: true, at: n => `scalar2(${n}, 0)` },
          { offset: page.starts, bytes: 4 * kvHeads, shared: true, at: n => `starts(${n})` },
          { offset: page.lists, bytes: page.room, shared: true, at: n => `codes[${values} + ${n}]` },
          field,
          { offset: page.counts, bytes: (at.all - at.counts) / 2, at: n => `counts(${n}, head)` },
        ],
      };
    }
    case 'spectrum': {
      const { kept, cosines, sines } = page;
      const grids = [{ offset: page.pairs, bits: 8, order: 'columns' } as const, cosines, sines].map((codes, n) => {
        const { text, field } = grid(`slots${n}`, { ...codes, tokens: P, dims: kept }, `slot${n}`);
        const slot = `fn slot${n}(head: u32, t: u32, i: u32) -> u32 { return codes[(head * ${P} + t) * ${2 * D} + ${n * kept} + i]; }`;
        return { text: `${slot}\n${text}`, field };
      });
      return {
        text: grids.map(({ text }) => text).join('\n'),
        fields: [...grids.map(({ field }) => field), scalars(page.scales)],
      };
    }
  }
}
