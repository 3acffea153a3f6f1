/** Keys as their largest RoPE pairs (TriAttention); codec/tri/format.ts defines the bytes. */
import type { PageEncoding } from '../../page-layout.ts';
import { packGrid, unpackGrid } from '../code-grid.ts';
import { f32, type I32, i32, index, type Local } from '../emit.ts';
import type { Kernel } from '../module.ts';
import { loadF16, storeF16 } from '../ops.ts';
import type { DequantizeContext, SealContext } from './head-context.ts';

type Spectrum = PageEncoding & { kind: 'spectrum' };

/** Two tiles of codes, and the bytes per code. */
function tilesOf(k: Kernel, { keptPairs, cosines }: Spectrum, pageTokens: number, codes: I32) {
  const bytes = cosines.bits > 8 ? 2 : 1;
  const first = k.i32(codes);
  return { bytes, cosines: first, sines: k.i32(i32.add(first, bytes * keptPairs * pageTokens)) };
}

/** Writes page-relative keys, out[token][dim]. `tokenRope` is the address of cos and sin per token and pair. */
export function dequantizeSpectrum(
  { k, shape: { headDim, pageTokens }, block, codes, out }: DequantizeContext,
  encoding: Spectrum,
  tokenRope: number,
): void {
  const { keptPairs } = encoding;
  const { bits } = encoding.cosines;
  const tiles = tilesOf(k, encoding, pageTokens, codes);
  unpackGrid(k, { ...encoding.cosines, tokens: pageTokens, dims: keptPairs }, block, tiles.cosines);
  unpackGrid(k, { ...encoding.sines, tokens: pageTokens, dims: keptPairs }, block, tiles.sines);
  const signed = (tile: Local<'i32'>, at: I32) => {
    const address = index(tile, tiles.bytes, at);
    const code = tiles.bytes === 2 ? i32.load16U(address) : i32.load8U(address);
    return f32.fromI32(i32.shrS(i32.shl(code, 32 - bits), 32 - bits));
  };
  const [cos, sin, step] = [k.f32(), k.f32(), k.f32()];
  const [pair, rope, to] = [k.i32(), k.i32(), k.i32()];
  k.for(0, pageTokens, 1, t => {
    const row = k.i32(index(out, 4 * headDim, t));
    k.for(0, 4 * headDim, 4, i => k.do(f32.store(i32.add(row, i), f32.const(0))));
    const scale = loadF16(index(block, 2, t), encoding.scales.offset);
    k.set(step, f32.mul(scale, f32.const(1 / (2 ** (bits - 1) - 1))));
    k.for(0, keptPairs, 1, slot => {
      const at = k.i32(i32.add(i32.mul(t, keptPairs), slot));
      k.set(cos, f32.mul(signed(tiles.cosines, at), step));
      k.set(sin, f32.mul(signed(tiles.sines, at), step));
      k.set(pair, i32.load8U(i32.add(index(block, pageTokens, slot), t), encoding.pairsOffset));
      k.set(rope, i32.mul(i32.add(i32.mul(t, headDim / 2), pair), 8));
      k.set(to, index(row, 8, pair));
      const [c, s] = [f32.load(rope, tokenRope), f32.load(rope, tokenRope + 4)];
      k.do(f32.store(to, f32.sub(f32.mul(cos, c), f32.mul(sin, s))));
      k.do(f32.store(to, f32.add(f32.mul(cos, s), f32.mul(sin, c)), 4));
    });
  });
}

/** Encodes page-relative keys y [token][dim]. `scratch` is space for two vectors. */
export function sealSpectrum(
  { k, shape: { headDim, pageTokens }, block, y, codes, scratch }: SealContext,
  encoding: Spectrum,
  tokenRope: number,
): void {
  const { keptPairs } = encoding;
  const { bits } = encoding.cosines;
  const maxCode = 2 ** (bits - 1) - 1;
  const tiles = tilesOf(k, encoding, pageTokens, codes);
  const energies = k.i32(scratch);
  const [a, b, scale, maxEnergy] = [k.f32(), k.f32(), k.f32(), k.f32()];
  const [best, slot, rope] = [k.i32(), k.i32(), k.i32()];
  k.for(0, pageTokens, 1, t => {
    const vector = k.i32(index(y, 4 * headDim, t));
    const load = (pair: I32) => {
      k.set(a, f32.load(index(vector, 8, pair)));
      k.set(b, f32.load(index(vector, 8, pair), 4));
    };
    const energyAt = (pair: I32) => index(energies, 4, pair);
    k.for(0, headDim / 2, 1, pair => {
      load(pair);
      k.do(f32.store(energyAt(pair), f32.add(f32.mul(a, a), f32.mul(b, b))));
    });
    // Select the largest pair `keptPairs` times; selected pairs are marked by -1.
    k.for(0, keptPairs, 1, () => {
      k.set(maxEnergy, f32.const(-0.5));
      k.for(0, headDim / 2, 1, pair => {
        const energy = f32.load(energyAt(pair));
        k.if(f32.gt(energy, maxEnergy), () => {
          k.set(maxEnergy, energy);
          k.set(best, pair);
        });
      });
      k.do(f32.store(energyAt(best), f32.const(-1)));
    });
    const forEachSelected = (visit: (pair: Local<'i32'>) => void) =>
      k.for(0, headDim / 2, 1, pair => {
        k.if(f32.lt(f32.load(energyAt(pair)), f32.const(0)), () => {
          load(pair);
          k.set(rope, i32.mul(i32.add(i32.mul(t, headDim / 2), pair), 8));
          visit(pair);
        });
      });
    const [c, s] = [f32.load(rope, tokenRope), f32.load(rope, tokenRope + 4)];
    const cosine = f32.add(f32.mul(a, c), f32.mul(b, s));
    const sine = f32.sub(f32.mul(b, c), f32.mul(a, s));
    k.set(scale, f32.const(0));
    forEachSelected(() => k.set(scale, f32.max(scale, f32.max(f32.abs(cosine), f32.abs(sine)))));
    const scaleAt = k.i32(index(block, 2, t));
    storeF16(k, scaleAt, scale, encoding.scales.offset);
    k.set(scale, loadF16(scaleAt, encoding.scales.offset));
    k.set(slot, 0);
    const code = (value: typeof cosine) => {
      const rounded = f32.floor(f32.add(f32.mul(f32.div(value, scale), f32.const(maxCode)), f32.const(0.5)));
      const clamped = i32.fromF32(f32.max(f32.const(-maxCode), f32.min(f32.const(maxCode), rounded)));
      return i32.and(i32.select(f32.gt(scale, f32.const(0)), clamped, 0), 2 ** bits - 1);
    };
    const store = (tile: I32, value: typeof cosine) => {
      const address = index(tile, tiles.bytes, t, [keptPairs, slot]);
      k.do(tiles.bytes === 2 ? i32.store16(address, code(value)) : i32.store8(address, code(value)));
    };
    forEachSelected(pair => {
      k.do(i32.store8(i32.add(index(block, pageTokens, slot), t), pair, encoding.pairsOffset));
      store(tiles.cosines, cosine);
      store(tiles.sines, sine);
      k.increment(slot, 1);
    });
  });
  packGrid(k, { ...encoding.cosines, tokens: pageTokens, dims: keptPairs }, tiles.cosines, block);
  packGrid(k, { ...encoding.sines, tokens: pageTokens, dims: keptPairs }, tiles.sines, block);
}
