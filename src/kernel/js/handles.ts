/** What the js device's handles hold. */
import type { Block, Tensor, Weights } from '../device.ts';

export interface JsTensor extends Tensor {
  data: Float32Array<ArrayBuffer>;
}
export interface JsWeights extends Weights {
  data: Float32Array<ArrayBuffer>;
}
export interface JsBlock extends Block {
  data: Uint8Array<ArrayBuffer>;
}

export const floats = (tensor: Tensor) => (tensor as JsTensor).data;
export const matrix = (weights: Weights) => (weights as JsWeights).data;
export const raw = (block: Block) => (block as JsBlock).data;
