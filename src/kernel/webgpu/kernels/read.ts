/**
 * A fragment as WGSL: what token t's coded vector holds at place i of a head's block, as `NAME_unit(block, t, i)` times
 * `NAME_scale(page, block, t)`. Any codec can be read so; those that are worth it have faster readers beside it. A new
 * kind of fragment gets its case here and in seal.ts, and runs.
 */
import { UnsupportedError } from '../../../errors.ts';
import type { Fragment, PageFragment, ScalarsFragment } from '../../fragment.ts';
import { readGrid } from './grid.ts';
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

/** Where a head's block begins. */
export const blockAt = ({ sharedBytes, blockBytes }: Fragment, page: string) =>
  `${page} + ${sharedBytes} + head * ${blockBytes}`;

export function pageReader(name: string, fragment: Fragment, { headDim: D, pageTokens: P }: PageShape): string {
  const kind = fragment.page;
  const scalar = ({ offset, bytes }: ScalarsFragment, base = 'block') =>
    `${bytes === 2 ? 'half' : 'single'}(${base} + ${offset} + t * ${bytes})`;
  const grid = (id: string, codes: Parameters<typeof readGrid>[1]) => readGrid(`${name}_${id}`, codes);
  const table = (id: string, levels: Float32Array) =>
    `var<private> ${name}_${id}: array<f32, ${levels.length}> = array<f32, ${levels.length}>(${[...levels].map(float).join()});`;
  const unit = (body: string) => `fn ${name}_unit(block: u32, t: u32, i: u32) -> f32 { ${body} }`;
  const scale = (body = 'return 1.0;') => `fn ${name}_scale(page: u32, block: u32, t: u32) -> f32 { ${body} }`;

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
    default:
      throw notYet(kind);
  }
}

/** Pages that this device cannot read yet. */
export const notYet = ({ kind }: PageFragment): UnsupportedError =>
  new UnsupportedError(
    `The webgpu device does not know pages of kind "${kind}" yet (codecs that learn from data). ` +
      'Use --device wasm, or a codec such as tq4u.',
  );
