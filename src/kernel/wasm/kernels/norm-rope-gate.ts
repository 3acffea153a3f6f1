/** RMS norm, RoPE, gates of feed-forward networks and f16 conversion. Tensors are contiguous rows of f32. */
import { type Activation, CLAMP, CLAMPED_SLOPE, GELU_CUBIC, GELU_LINEAR } from '../../device.ts';
import { f32, f32x4, i32, index, lanes32, type V128, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { chunkRange, exp, f32ToF16, loadF16x4, packLow16, reduceAdd } from '../ops.ts';
import { chunked } from '../task.ts';

/** out = x / rms(x) * weight, or added to out, for each vector of n values. `eps` is the bits of an f32. */
export const normSignature = (accumulate: boolean) =>
  chunked(accumulate ? 'normAdd' : 'norm', 'x', 'out', 'weight', 'vectors', 'n', 'eps');
export function norm(accumulate: boolean): Kernel {
  const k = new Kernel(normSignature(accumulate));
  const { x, out, weight, vectors, n, eps, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, vectors, 1, chunk, chunks);
  k.for(from, to, 1, vector => {
    const at = k.i32(i32.mul(i32.mul(vector, n), 4));
    const [source, target] = [k.i32(i32.add(x, at)), k.i32(i32.add(out, at))];
    const sum = k.v128(v128.zero);
    const bytes = k.i32(i32.mul(n, 4));
    const v = k.v128();
    k.for(0, bytes, 16, i => {
      k.set(v, v128.load(i32.add(source, i)));
      k.set(sum, f32x4.add(sum, f32x4.mul(v, v)));
    });
    const mean = f32.div(reduceAdd(k, sum), f32.fromI32(n));
    const scale = k.v128(f32x4.splat(f32.div(f32.const(1), f32.sqrt(f32.add(mean, f32.fromBits(eps))))));
    k.for(0, bytes, 16, i => {
      const scaled = f32x4.mul(v128.load(i32.add(source, i)), scale);
      const normed = f32x4.mul(scaled, v128.load(i32.add(weight, i)));
      const sum = accumulate ? f32x4.add(v128.load(i32.add(target, i)), normed) : normed;
      k.do(v128.store(i32.add(target, i), sum));
    });
  });
  return k;
}

/** Rotates adjacent pairs of the first `dims` dims of each head. */
export const ROPE = chunked('rope', 'x', 'angles', 'rows', 'cols', 'headDim', 'dims');
export function rope(): Kernel {
  const k = new Kernel(ROPE);
  const { x, angles, rows, cols, headDim, dims, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, rows, 1, chunk, chunks);
  const sign = f32x4.const(-1, 1, -1, 1);
  k.for(from, to, 1, row => {
    const start = k.i32(index(x, 4, i32.mul(row, cols)));
    const rowAngles = k.i32(index(angles, 4, i32.mul(row, dims)));
    k.for(0, i32.mul(cols, 4), i32.mul(headDim, 4), head => {
      // Two pairs per iteration; if dims is not a multiple of 4, the last pair is rotated by itself.
      const pairs = k.i32(i32.and(i32.mul(dims, 4), -16));
      const [v, cs] = [k.v128(), k.v128()];
      const at = k.i32();
      k.for(0, pairs, 16, i => {
        k.set(at, i32.add(i32.add(start, head), i));
        k.set(v, v128.load(at));
        k.set(cs, v128.load(i32.add(rowAngles, i)));
        const cos = v128.shuffle(cs, cs, lanes32(0, 0, 2, 2));
        const sin = v128.shuffle(cs, cs, lanes32(1, 1, 3, 3));
        const swapped = v128.shuffle(v, v, lanes32(1, 0, 3, 2));
        k.do(v128.store(at, f32x4.add(f32x4.mul(v, cos), f32x4.mul(f32x4.mul(swapped, sin), sign))));
      });
      k.if(i32.and(dims, 2), () => {
        k.set(at, i32.add(i32.add(start, head), pairs));
        const [a, b] = [k.f32(f32.load(at)), k.f32(f32.load(at, 4))];
        const [c, s] = [k.f32(f32.load(i32.add(rowAngles, pairs))), k.f32(f32.load(i32.add(rowAngles, pairs), 4))];
        k.do(f32.store(at, f32.sub(f32.mul(a, c), f32.mul(b, s))));
        k.do(f32.store(at, f32.add(f32.mul(a, s), f32.mul(b, c)), 4));
      });
    });
  });
  return k;
}

/** An activation is x sigmoid(logit(x)). */
const logit: Record<Activation, (x: V128) => V128> = {
  silu: x => x,
  gelu: x => f32x4.mul(x, f32x4.add(f32x4.const(GELU_LINEAR), f32x4.mul(f32x4.mul(x, x), f32x4.const(GELU_CUBIC)))),
  clamped: x => f32x4.mul(x, f32x4.const(CLAMPED_SLOPE)),
};

const atMostClamp = (x: V128) => f32x4.min(f32x4.const(CLAMP), x);

/** gate = activation(gate) * up. */
export const gateSignature = (activation: Activation) => chunked(`gate ${activation}`, 'gate', 'up', 'values');
export function gate(activation: Activation): Kernel {
  const k = new Kernel(gateSignature(activation));
  const { gate, up, values, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, values, 4, chunk, chunks);
  const g = k.v128();
  const isClamped = activation === 'clamped';
  k.for(i32.mul(from, 4), i32.mul(to, 4), 16, i => {
    const [x, y] = [v128.load(i32.add(gate, i)), v128.load(i32.add(up, i))];
    k.set(g, isClamped ? atMostClamp(x) : x);
    const factor = isClamped ? f32x4.add(f32x4.max(f32x4.const(-CLAMP), atMostClamp(y)), f32x4.const(1)) : y;
    const sigmoid = f32x4.div(f32x4.const(1), f32x4.add(f32x4.const(1), exp(k, f32x4.neg(logit[activation](g)))));
    k.do(v128.store(i32.add(gate, i), f32x4.mul(f32x4.mul(g, sigmoid), factor)));
  });
  return k;
}

/** x = softcap * tanh(x / softcap). `softcap` is the bits of an f32. */
export const SOFTCAP = chunked('softcap', 'x', 'values', 'softcap');
export function softcap(): Kernel {
  const k = new Kernel(SOFTCAP);
  const { x, values, softcap, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, values, 4, chunk, chunks);
  const cap = k.v128(f32x4.splat(f32.fromBits(softcap)));
  const one = f32x4.const(1);
  k.for(i32.mul(from, 4), i32.mul(to, 4), 16, i => {
    const at = k.i32(i32.add(x, i));
    // tanh(y) = 1 - 2 / (1 + exp(2 y)).
    const power = exp(k, f32x4.mul(f32x4.const(2), f32x4.div(v128.load(at), cap)));
    k.do(v128.store(at, f32x4.mul(cap, f32x4.sub(one, f32x4.div(f32x4.const(2), f32x4.add(one, power))))));
  });
  return k;
}

export const F16_TO_F32 = chunked('f16ToF32', 'x', 'out', 'values');
export function f16ToF32(): Kernel {
  const k = new Kernel(F16_TO_F32);
  const { x, out, values, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, values, 4, chunk, chunks);
  k.for(from, to, 4, i => {
    k.do(v128.store(index(out, 4, i), loadF16x4(index(x, 2, i))));
  });
  return k;
}

/** Keys and values, f32 [token][head][n], to f16 [head][capacity][n], the values after the keys. */
export const F32_TO_F16_HEADS = chunked('f32ToF16Heads', 'keys', 'values', 'out', 'capacity', 'tokens', 'n', 'heads');
export function f32ToF16Heads(): Kernel {
  const k = new Kernel(F32_TO_F16_HEADS);
  const { keys, values, out, capacity, tokens, n, heads, chunk, chunks } = k.params;
  k.for(chunk, i32.mul(heads, 2), chunks, unit => {
    const head = k.i32(i32.remU(unit, heads));
    const x = k.i32(i32.select(i32.ltS(unit, heads), keys, values));
    const target = k.i32(index(out, 2, i32.mul(i32.mul(unit, capacity), n)));
    k.for(0, tokens, 1, token => {
      const source = k.i32(index(x, 4, i32.mul(i32.add(i32.mul(token, heads), head), n)));
      k.for(0, n, 4, i => {
        const f16 = k.v128(f32ToF16(k, v128.load(index(source, 4, i))));
        k.do(v128.store64(target, packLow16(f16, f16)));
        k.increment(target, 8);
      });
    });
  });
  return k;
}
