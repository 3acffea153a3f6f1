/** Tiles of several matrices that share their input, one matrix after the other: so they go round better than each alone. */
import { integers, type Matmul } from './matmul.ts';
import { each, halves } from './text.ts';

/** `input`: the buffers of what they share. */
export const severalInterface = (input: readonly string[], count: number) => ({
  params: ['inputs', 'blocks', ...Array.from({ length: count }, (_, k) => `rows${k}`)],
  buffers: [
    ...input,
    ...Array.from({ length: count }, (_, k) => [`codes${k}: array<vec4u>`, `scales${k}: array<u32>`]).flat(),
    ...Array.from({ length: count }, (_, k) => `write out${k}: array<f32>`),
  ],
});

/** Weights, load_weights and store as one matrix has them (matmul.ts), of that one whose tile this is. */
export const severalText = (m: Matmul, count: number) => /* wgsl */ `
${halves}
${integers(m.format, count)}
var<private> matrix: u32;
fn load_weights(block: u32, r: u32) -> Weights {
  ${each(count - 1, k => `if (matrix == ${k}) { return load_weights${k}(block, r); }`)}
  return load_weights${count - 1}(block, r);
}
fn store(o: u32, row: u32, sum: f32) {
  if (row >= p.inputs) { return; }
  ${each(count, k => `if (matrix == ${k} && o < p.rows${k}) { out${k}[row * p.rows${k} + o] = sum; }`)}
}`;

/** `firstOut` of a tile of N weight rows, and the `outs` that its matrix has. */
export const pickMatrix = (count: number, N: number) =>
  count === 1
    ? `let firstOut = group.x * ${N};
  let outs = p.rows;`
    : `var firstOut = group.x * ${N};
  var outs = p.rows0;
  ${each(count - 1, k => `{ let tiles = (p.rows${k} + ${N - 1}) / ${N} * ${N}; if (matrix == ${k} && firstOut >= tiles) { firstOut -= tiles; matrix = ${k + 1}; outs = p.rows${k + 1}; } }`)}`;
