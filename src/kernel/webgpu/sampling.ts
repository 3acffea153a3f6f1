/** Samples tokens on the GPU. A later pass can use them before the host has read them. */
import type { SampledTokens, SamplingRequest, Tensor } from '../device.ts';
import type { Gpu } from './gpu.ts';
import {
  findMaxLogit,
  MAXIMA_PER_ROW,
  NO_TOKEN,
  sample,
  WORDS_PER_MAXIMUM,
  WORDS_PER_REQUEST,
} from './kernels/sample.ts';
import { bufferOf } from './tensor.ts';

/** Token handles that stay valid: later ones reuse the slots. */
const HANDLE_CAPACITY = 4096;

export class Sampling {
  /** A ring of sampled tokens: a handle is -1 minus a slot of it. */
  readonly tokens: GPUBuffer;
  private nextSlot = 0;

  constructor(private readonly gpu: Gpu) {
    this.tokens = gpu.createBuffer(4 * HANDLE_CAPACITY, 'sampled tokens');
  }

  sample(logits: Tensor, requests: readonly SamplingRequest[]): SampledTokens {
    // Below 1, so that the draw stays within the weights however their sum was rounded.
    const words = Float32Array.from(
      requests.flatMap(({ temperature, topP, minP, random }) => [
        0,
        temperature,
        0,
        topP,
        minP,
        Math.min(random, 0.999999),
      ]),
    );
    const integers = new Uint32Array(words.buffer);
    requests.forEach(({ row, topK }, i) => {
      integers[WORDS_PER_REQUEST * i] = row;
      integers[WORDS_PER_REQUEST * i + 2] = topK;
    });
    this.gpu.reserveArena(words.byteLength);
    const { word } = this.gpu.writeToArena(words);
    if (this.nextSlot + requests.length > HANDLE_CAPACITY) this.nextSlot = 0;
    const first = this.nextSlot;
    this.nextSlot += requests.length;
    const maxima = this.gpu.scratch(
      'partial maxima of logits',
      4 * WORDS_PER_MAXIMUM * MAXIMA_PER_ROW * Math.max(64, requests.length),
    );
    const kernel = this.gpu.kernel('sample', () => sample(Math.min(1024, this.gpu.limits.invocations)));
    const inputs = [this.gpu.arena, bufferOf(logits)];
    this.gpu.run(findMaxLogit, [word, logits.cols], [...inputs, maxima], [MAXIMA_PER_ROW, requests.length]);
    this.gpu.run(kernel, [word, logits.cols, first], [...inputs, maxima, this.tokens], [requests.length]);
    const read = this.gpu.read(this.tokens, 4 * first, 4 * requests.length);
    return {
      ids: read.then(bytes => Array.from(new Uint32Array(bytes), id => (id === NO_TOKEN ? undefined : id))),
      handles: requests.map((_, i) => -1 - first - i),
    };
  }
}
