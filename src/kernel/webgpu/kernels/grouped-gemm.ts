/** Grouped GEMM: tiles of several matrices that share their input, in one dispatch, which fills the GPU better. */
import { type BufferBinding, readBuffer, u32, writeBuffer } from '../kernel.ts';
import { integerWeights, type MatmulVariant } from './gemv.ts';
import { each, unpackHalves } from './snippets.ts';

/** `input`: the bindings of the shared input. */
export const groupedBindings = (input: readonly BufferBinding[], count: number) => ({
  params: u32('inputs', 'blocks', ...Array.from({ length: count }, (_, k) => `rows${k}`)),
  buffers: [
    ...input,
    ...Array.from({ length: count }, (_, k) => [
      readBuffer(`codes${k}`, 'vec4u'),
      readBuffer(`scales${k}`, 'u32'),
    ]).flat(),
    ...Array.from({ length: count }, (_, k) => writeBuffer(`out${k}`, 'f32')),
  ],
});

/** Weights and load_weights as in gemv.ts, for the matrix that this tile belongs to. */
export const groupedWeights = (m: MatmulVariant, count: number) => /* wgsl */ `
${unpackHalves}
${integerWeights(m.format, count)}
var<private> matrix: u32;
fn load_weights(block: u32, r: u32) -> Weights {
  ${each(count - 1, k => `if (matrix == ${k}) { return load_weights${k}(block, r); }`)}
  return load_weights${count - 1}(block, r);
}`;

/** The same for store. */
export const groupedStore = (count: number) => /* wgsl */ `
fn store(o: u32, row: u32, sum: f32) {
  if (row >= p.inputs) { return; }
  ${each(count, k => `if (matrix == ${k} && o < p.rows${k}) { out${k}[row * p.rows${k} + o] = sum; }`)}
}`;

/** Declares `firstOut`, the first weight row of this tile, and `outs`, the weight rows of its matrix. */
export const selectMatrix = (count: number, N: number) =>
  count === 1
    ? `let firstOut = group.x * ${N};
  let outs = p.rows;`
    : `var firstOut = group.x * ${N};
  var outs = p.rows0;
  ${each(count - 1, k => `{ let tiles = (p.rows${k} + ${N - 1}) / ${N} * ${N}; if (matrix == ${k} && firstOut >= tiles) { firstOut -= tiles; matrix = ${k + 1}; outs = p.rows${k + 1}; } }`)}`;
