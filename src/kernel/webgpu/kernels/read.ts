/**
 * A fragment as WGSL: what token t's coded vector holds at place i, as `NAME_unit(page, head, t, i)` times
 * `NAME_scale(page, head, t)`. Any codec can be read so; those that are worth it have faster readers beside it. A new
 * kind of fragment gets its case here and in seal.ts, and runs.
 */
import type { Fragment, ScalarsFragment } from '../../fragment.ts';
import { readGrid } from './grid.ts';
import { oakenReader } from './oaken.ts';
import { ownTable } from './tables.ts';
import { float } from './text.ts';

export interface PageShape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
}

/** Reads out of `pool: array<u32>` at any byte. */
export const loads = /* wgsl */ `
fn byte(at: u32) -> u32 { return (pool[at >> 2] >> (8 * (at & 3))) & 255; }
fn half(at: u32) -> f32 { return unpack2x16float(pool[at >> 2] >> (8 * (at & 2))).x; }
fn single(at: u32) -> f32 {
  let low = pool[at >> 2] >> (8 * (at & 2));
  return bitcast<f32>(select(low, (low & 0xffff) | (pool[(at >> 2) + 1] << 16), (at & 2) == 2));
}`;

/** Where a head's block begins, if there are blocks. */
export const blockAt = ({ sharedBytes, blockBytes }: Fragment, page: string) =>
  blockBytes > 0 ? `${page} + ${sharedBytes} + head * ${blockBytes}` : page;

/** Tables are in `NAMETables`. */
export function pageReader(name: string, fragment: Fragment, shape: PageShape): string {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  const kind = fragment.page;
  const scalar = ({ offset, bytes }: ScalarsFragment, base = 'block') =>
    `${bytes === 2 ? 'half' : 'single'}(${base} + ${offset} + t * ${bytes})`;
  const grid = (id: string, codes: Parameters<typeof readGrid>[1]) => readGrid(`${name}_${id}`, codes);
  const table = (id: string, levels: Float32Array) =>
    `var<private> ${name}_${id}: array<f32, ${levels.length}> = array<f32, ${levels.length}>(${[...levels].map(float).join()});`;
  const block = `let block = ${blockAt(fragment, 'page')};`;
  const unit = (body: string) => `fn ${name}_unit(page: u32, head: u32, t: u32, i: u32) -> f32 { ${block} ${body} }`;
  const scale = (body = 'return 1.0;') => `fn ${name}_scale(page: u32, head: u32, t: u32) -> f32 { ${block} ${body} }`;
  const own = ownTable(fragment);
  const word = (at: string) => `${name}Tables[${own} + ${at}]`;

  switch (kind.kind) {
    case 'f16':
      return `${unit(`return half(block + 2 * (t * ${D} + i));`)}\n${scale()}`;
    case 'fp8':
      return `${unit(`
  let code = byte(block + t * ${D} + i);
  let normal = bitcast<f32>((((code & 127) << 20) + (120u << 23)));
  let small = f32(code & 7) * ${float(2 ** -9)};
  return select(1.0, -1.0, code >= 128) * select(normal, small, (code & 0x78) == 0);`)}\n${scale()}`;
    case 'q8_0':
      return `${unit(`
  let at = block + (t * ${D / 32} + i / 32) * 34;
  return half(at) * f32(i32(byte(at + 2 + i % 32) << 24) >> 24);`)}\n${scale()}`;
    case 'q4_0':
      return `${unit(`
  let at = block + (t * ${D / 32} + i / 32) * 18;
  let code = (byte(at + 2 + i % 16) >> (4 * (i % 32 / 16))) & 15;
  return half(at) * (f32(code) - 8.0);`)}\n${scale()}`;
    case 'levels': {
      const codes = { ...kind.codes, tokens: P, dims: D };
      const turned = 2 ** (kind.codes.bits - 1);
      const level = kind.uniform
        ? `(f32(i32(${name}_codes(block, t, i) ^ ${turned}) - ${turned}) + 0.5) * ${float(2 * kind.levels[0])}`
        : `${name}_levels[${name}_codes(block, t, i)]`;
      return [
        grid('codes', codes),
        kind.uniform ? '' : table('levels', kind.levels),
        unit(`return ${level};`),
        scale(`return ${scalar(kind.norms)};`),
      ].join('\n');
    }
    case 'hybrid': {
      const { parts, residual } = kind;
      const texts = parts.flatMap(({ codes, first, end, levels }, n) => [
        grid(`part${n}`, { ...codes, tokens: P, dims: end - first }),
        table(`levels${n}`, levels),
      ]);
      if (residual) texts.push(grid('signs', { ...residual.signs, tokens: P, dims: D }));
      const level = (n: number) => `${name}_levels${n}[${name}_part${n}(block, t, i - ${parts[n].first})]`;
      const signs = residual
        ? `if (i >= ${D}) {
    let size = ${float(residual.gain)} * ${scalar(residual.norms)};
    return select(-size, size, ${name}_signs(block, t, i - ${D}) == 1);
  }`
        : '';
      texts.push(
        unit(`
  ${signs}
  let norm = ${scalar(kind.norms)};
  if (i < ${parts[0].end}) { return norm * ${level(0)}; }
  return norm * ${level(1)};`),
        scale(),
      );
      return texts.join('\n');
    }
    case 'affine': {
      const { group, axis, norms } = kind;
      const range = axis === 'channel' ? `(t / ${group}) * ${D} + i` : `t * ${D / group} + i / ${group}`;
      return [
        grid('codes', { ...kind.codes, tokens: P, dims: D }),
        unit(`
  let at = block + ${kind.ranges} + 4 * (${range});
  return fma(f32(${name}_codes(block, t, i)), half(at + 2), half(at));`),
        scale(norms && `return ${scalar(norms, norms.per === 'page' ? 'page' : 'block')};`),
      ].join('\n');
    }
    case 'additive': {
      const starts = kvHeads * (D / 4) + 1;
      return [
        readGrid(`${name}_codes`, { offset: 0, bits: 4, order: 'columns', tokens: P, dims: 0 }),
        unit(`
  let quad = head * ${D / 4} + i / 4;
  var sum = 0.0;
  for (var column = ${word('quad')}; column < ${word('quad + 1')}; column++) {
    sum += bitcast<f32>(${word(`${starts} + column * 64 + 4 * ${name}_codes(page, t, column) + i % 4`)});
  }
  return sum;`),
        scale(),
      ].join('\n');
    }
    case 'mixed': {
      const units = kvHeads * D;
      const plane = (width: number) => `
  if ((bits & ${width}) != 0) {
    code |= ${name}_plane${width}(at, t, 0) << shift;
    shift += ${width};
    at += ${Math.ceil((P * width) / 8)};
  }`;
      return [
        ...[4, 2, 1].map(width =>
          readGrid(`${name}_plane${width}`, { offset: 0, bits: width, order: 'columns', tokens: P, dims: 1 }),
        ),
        unit(`
  let column = ${word(`head * ${D} + i`)};
  let bits = column & 7;
  if (bits == 0) { return 0.0; }
  var at = page + column / 8;
  var code = 0u;
  var shift = 0u;
  ${[4, 2, 1].map(plane).join('')}
  let half = 1u << (bits - 1);
  return (f32(i32(code ^ half) - i32(half)) + 0.5) * bitcast<f32>(${word(`${units + 1} + head * ${D} + i`)});`),
        scale(),
      ].join('\n');
    }
    case 'book': {
      const { dims, own: owned, codes } = kind;
      const subs = D / dims;
      return [
        grid('codes', { ...codes, tokens: P, dims: subs }),
        unit(`
  let entry = ${owned ? `(head * ${subs} + i / ${dims}) * ${2 ** codes.bits} + ` : ''}${name}_codes(block, t, i / ${dims});
  return bitcast<f32>(${word(`entry * ${dims} + i % ${dims}`)});`),
        scale(),
      ].join('\n');
    }
    case 'oaken':
      return [grid('codes', { ...kind.codes, tokens: P, dims: D }), oakenReader(name, kind, shape, unit), scale()].join(
        '\n',
      );
    case 'spectrum': {
      const { kept, cosines, sines } = kind;
      const most = 2 ** (cosines.bits - 1) - 1;
      const signed = (id: string) =>
        `f32(i32(${name}_${id}(block, t, slot) << ${32 - cosines.bits}) >> ${32 - cosines.bits})`;
      return [
        grid('pairs', { offset: kind.pairs, bits: 8, order: 'columns', tokens: P, dims: kept }),
        grid('cosines', { ...cosines, tokens: P, dims: kept }),
        grid('sines', { ...sines, tokens: P, dims: kept }),
        unit(`
  for (var slot = 0u; slot < ${kept}; slot++) {
    if (${name}_pairs(block, t, slot) != i / 2) { continue; }
    let at = 2 * (t * ${D / 2} + i / 2);
    let turn = vec2f(bitcast<f32>(${word('at')}), bitcast<f32>(${word('at + 1')}));
    let both = vec2f(${signed('cosines')}, ${signed('sines')});
    return select(both.x * turn.x - both.y * turn.y, both.x * turn.y + both.y * turn.x, i % 2 == 1);
  }
  return 0.0;`),
        scale(`return ${scalar(kind.scales)} / ${float(most)};`),
      ].join('\n');
    }
  }
}
