/** The last step of a pass: logits of the rows that need them, or tokens that the device samples. */
import type { Device, SamplingRequest } from '../kernel/device.ts';
import type { Yielder } from '../platform/event-loop.ts';
import { type Chunk, logitRows, type PlacedChunk } from './batch.ts';
import type { ModelConfig } from './model-config.ts';
import type { Scratch } from './scratch.ts';
import type { ModelWeights } from './weights.ts';

export interface OutputHooks {
  /** Called for each row that needs logits, in order. */
  onLogits(chunk: Chunk, row: number, logits: Float32Array): void;
  /** Called instead of `onLogits` with a token that the device sampled. */
  onToken?(chunk: Chunk, id: number | undefined): void;
  /** Called with the handle of that token when the pass is recorded: the next pass can take it as input at once. */
  onHandle?(chunk: Chunk, handle: number): void;
}

interface OutputModel {
  readonly device: Device;
  readonly config: ModelConfig;
  readonly weights: ModelWeights;
  readonly scratch: Scratch;
}

/** Returns what waits for each result and delivers it, in order. */
export async function recordOutputs(
  { device, config: { logitSoftcap }, weights, scratch }: OutputModel,
  placed: readonly PlacedChunk[],
  { onLogits, onToken, onHandle }: OutputHooks,
  yielder: Yielder,
): Promise<(() => Promise<void>)[]> {
  const { normed, outputRows, logits } = scratch;
  const needLogits = placed.flatMap(logitRows);
  const deliveries: (() => Promise<void>)[] = [];
  /** All reads begin now and are awaited in turn: if the first one fails, the others must not end the process. */
  const begin = <T>(read: Promise<T>): Promise<T> => {
    read.catch(() => {});
    return read;
  };
  for (let first = 0; first < needLogits.length; first += logits.rows) {
    const rows = needLogits.slice(first, first + logits.rows);
    // Often these are the first rows of the batch: no copy.
    const inPlace = first === 0 && rows.every(({ placed, row }, i) => placed.row + row === i);
    for (let i = 0; i < rows.length && !inPlace; i++)
      device.copyRows(normed, rows[i].placed.row + rows[i].row, outputRows, i, 1);
    device.project(inPlace ? normed : outputRows, rows.length, [{ weights: weights.outputHead, out: logits }]);
    if (logitSoftcap) device.softcap(logits, rows.length, logitSoftcap);
    const requests = rows.flatMap(({ placed: { chunk } }, i): SamplingRequest[] =>
      chunk.logits === 'last' && chunk.sampling && onToken ? [{ ...chunk.sampling, row: i }] : [],
    );
    const sampled = requests.length > 0 ? device.sampleTokens?.(logits, requests) : undefined;
    if (sampled) begin(sampled.ids);
    rows.forEach(({ placed: { chunk }, row }, i) => {
      const request = requests.findIndex(one => one.row === i);
      if (sampled && request >= 0) {
        onHandle?.(chunk, sampled.handles[request]);
        deliveries.push(async () => onToken?.(chunk, (await sampled.ids)[request]));
      } else {
        const read = begin(device.readRows(logits, i));
        deliveries.push(async () => onLogits(chunk, row, await read));
      }
    });
    if (yielder.isDue()) await yielder.yieldNow();
  }
  return deliveries;
}
