/** The weighted sum of the outputs of a row's experts, added to the residual stream. */
import { f32x4, i32, index, v128 } from '../emit.ts';
import { Kernel } from '../module.ts';
import { chunkRange } from '../ops.ts';
import { chunked } from '../task.ts';

/** out[row] += weights[row][i] x outputs[row][i], for `used` experts per row. */
export const ADD_EXPERTS = chunked('addExperts', 'outputs', 'weights', 'out', 'rows', 'used', 'cols');
export function addExperts(): Kernel {
  const k = new Kernel(ADD_EXPERTS);
  const { outputs, weights, out, rows, used, cols, chunk, chunks } = k.params;
  const { from, to } = chunkRange(k, rows, 1, chunk, chunks);
  const [source, target] = [k.i32(), k.i32()];
  const weight = k.v128();
  k.for(from, to, 1, row => {
    k.for(0, used, 1, i => {
      const choice = k.i32(i32.add(i32.mul(row, used), i));
      k.set(weight, v128.load32Splat(index(weights, 4, choice)));
      k.set(source, index(outputs, 4, choice, [cols, 0]));
      k.set(target, index(out, 4, row, [cols, 0]));
      k.for(0, cols, 4, () => {
        k.do(v128.store(target, f32x4.add(v128.load(target), f32x4.mul(weight, v128.load(source)))));
        k.increment(source, 16);
        k.increment(target, 16);
      });
    });
  });
  return k;
}
