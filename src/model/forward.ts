/**
 * The forward pass over a batch of chunks, each of its own sequence. The same code runs on every device.
 *
 * The rows of all chunks share the matrix multiplications. Attention runs per chunk, in runs of rows that read the same
 * sealed pages. A page is sealed, layer by layer, just before the first row that reads its codes, so the result does
 * not depend on how a prompt was split into chunks.
 */
import type { Sequence } from '../cache/sequence.ts';
import type { Device, KvBlocks, Tensor } from '../kernel/device.ts';
import { createYielder, type Yielder } from '../platform/event-loop.ts';
import {
  assignRows,
  type Chunk,
  groupRunsByRound,
  knownTokens,
  type PlacedChunk,
  type Round,
  sealRequests,
  tokenIdsByRow,
} from './batch.ts';
import { type CodeCheck, type PassCheck, startCheck } from './code-check.ts';
import { feedForward } from './feed-forward.ts';
import type { ModelConfig } from './model-config.ts';
import { type OutputHooks, recordOutputs } from './output-head.ts';
import { type RopeFrequencies, ropeTable } from './rope.ts';
import { type LayerProjections, projectionsOf, type Scratch } from './scratch.ts';
import type { LayerWeights, ModelWeights } from './weights.ts';

/** A model on a device, and what a pass needs. */
export interface LoadedModel {
  readonly device: Device;
  readonly config: ModelConfig;
  readonly weights: ModelWeights;
  readonly rope: RopeFrequencies;
  readonly scratch: Scratch;
}

export interface Hooks extends OutputHooks {
  /** Called when the pass has its memory, before anything is recorded. */
  onReady?(): void;
  /** Called and awaited in every layer, between RoPE and attention. The tensors are reused afterwards. */
  observe?(layer: number, activations: LayerActivations): void | Promise<void>;
  /** Compares attention on codes with attention on f16. */
  codeCheck?: CodeCheck;
  /** Starts at this layer instead of the embedding, with the rows of `x` that `observe` saw there. */
  resume?: { layer: number; rows(chunk: Chunk): Float32Array };
}

export interface LayerActivations {
  rows: number;
  /** The layer's input. */
  x: Tensor;
  q: Tensor;
  k: Tensor;
  v: Tensor;
}

/** A pass whose operations are all recorded. */
export interface Pass {
  /** Resolves when all logits and tokens are delivered. The next pass may start before, in the same scratch. */
  delivered: Promise<void>;
  /** The longest time, in ms, that the event loop was blocked. */
  longestBlockMs: number;
}

/** What the layers of a pass share. */
interface LayerPass {
  model: LoadedModel;
  rows: number;
  prefillRows: number;
  rounds: readonly Round[];
  yielder: Yielder;
  check?: PassCheck;
  observe?: Hooks['observe'];
}

/**
 * Records the pass; `delivered` then waits for its logits. It yields to the event loop between long operations, and
 * nothing else may use the scratch until it returns.
 */
export async function forward(model: LoadedModel, chunks: readonly Chunk[], hooks: Hooks): Promise<Pass> {
  const { device, config, weights, scratch } = model;
  const { codeCheck, observe, resume } = hooks;
  const { x, normed } = scratch;
  const { placed, rows, prefillRows } = assignRows(chunks);
  const check = codeCheck && startCheck(device, codeCheck, placed, layer => attendOptions(model, layer));
  await ensureMemory(device, chunks, check);
  hooks.onReady?.();
  if (resume) for (const { chunk, row } of placed) device.writeRows(x, row, resume.rows(chunk));
  else device.embed(weights.embedding, tokenIdsByRow(placed, rows), x, config.embeddingScale);
  writeAngles(model, placed);
  const yielder = createYielder();
  const pass = { model, rows, prefillRows, rounds: groupRunsByRound(placed), yielder, check, observe };
  const projections = projectionsOf(scratch, weights);

  for (let layer = resume?.layer ?? 0; layer < weights.layers.length; layer++) {
    const w = weights.layers[layer];
    await attention(pass, layer, w, projections[layer]);
    // Feed-forward: norm, the network, added to the residual stream.
    if (w.ffnNorm) device.rmsNorm(x, rows, w.ffnNorm, config.normEps, normed);
    if (yielder.isDue()) await yielder.yieldNow();
    const input = w.ffnNorm ? normed : x;
    await feedForward({ device, config, scratch, rows, prefillRows, yielder }, input, projections[layer]);
    if (w.ffnOutputNorm) device.rmsNorm(normed, rows, w.ffnOutputNorm, config.normEps, x, true);
    if (yielder.isDue()) await yielder.yieldNow();
  }

  device.rmsNorm(x, rows, weights.outputNorm, config.normEps, normed);
  for (const { chunk } of placed) chunk.sequence.commit(chunk.tokens.length, knownTokens(chunk));
  const checked = check?.read();
  // If a read fails before it is waited for, it must not end the process.
  checked?.catch(() => {});
  const outputs = await recordOutputs(model, placed, hooks, yielder);
  // Everything is recorded before anything is awaited, so the next pass can start in the same scratch.
  const deliver = async () => {
    await checked;
    for (const deliverRow of outputs) await deliverRow();
  };
  return { delivered: deliver(), longestBlockMs: yielder.longestBlock() };
}

/** Norm, q/k/v projections, RoPE, attention, output projection added to the residual stream. */
async function attention(
  { model, rows, prefillRows, rounds, yielder, check, observe }: LayerPass,
  layer: number,
  w: LayerWeights,
  { qkv, attentionOutput }: LayerProjections,
): Promise<void> {
  const { device, config, scratch } = model;
  const { normEps, ropeFirst } = config;
  const { x, normed, q, k, v, attention } = scratch;
  if (w.attentionNorm) device.rmsNorm(x, rows, w.attentionNorm, normEps, normed);
  device.project(w.attentionNorm ? normed : x, rows, qkv, prefillRows);
  const normalize = () => {
    if (!w.qNorm || !w.kNorm) return;
    device.rmsNorm(q, rows, w.qNorm, normEps, q);
    device.rmsNorm(k, rows, w.kNorm, normEps, k);
  };
  if (!ropeFirst) normalize();
  rotate(model, layer, rows);
  if (ropeFirst) normalize();
  if (yielder.isDue()) await yielder.yieldNow();
  if (observe) {
    await observe(layer, { rows, x, q, k, v });
    yielder.noteYield();
  }
  for (const [round, { runs, seals }] of rounds.entries()) {
    if (seals.length > 0) device.seal(layer, seals);
    device.append(layer, k, v, runs);
    device.attend(layer, q, attention, runs, attendOptions(model, layer));
    check?.check(layer, round, q, attention);
    if (yielder.isDue()) await yielder.yieldNow();
  }
  device.project(attention, rows, attentionOutput, prefillRows);
  if (w.attentionOutputNorm) device.rmsNorm(normed, rows, w.attentionOutputNorm, normEps, x, true);
}

const attendOptions = ({ config, weights }: LoadedModel, layer: number) => ({
  scale: config.attentionScale,
  softcap: config.attentionSoftcap,
  sinkLogits: weights.layers[layer].sinkLogits,
});

function rotate({ device, config, scratch }: LoadedModel, layer: number, rows: number): void {
  const { headDim, layerRopes } = config;
  const { ropeAngles, localRopeAngles, queryAngles } = scratch;
  const rope = layerRopes[layer] ?? 'none';
  const angles = { global: ropeAngles, local: localRopeAngles, none: undefined }[rope];
  if (!angles) return;
  device.rope(scratch.q, rows, headDim, (rope === 'global' && queryAngles) || angles);
  device.rope(scratch.k, rows, headDim, angles);
}

async function ensureMemory(device: Device, chunks: readonly Chunk[], check?: PassCheck): Promise<void> {
  const views: KvBlocks[] = chunks.flatMap(({ sequence: { view, exactView } }) =>
    exactView ? [view, exactView] : [view],
  );
  if (check) views.push(check.view);
  await device.ensureMemory?.(views);
}

function writeAngles({ device, rope, scratch }: LoadedModel, placed: readonly PlacedChunk[]): void {
  for (const { chunk, row } of placed) {
    writeRopeAngles(device, rope, scratch.ropeAngles, row, chunk);
    if (scratch.queryAngles) writeRopeAngles(device, rope, scratch.queryAngles, row, chunk, true);
    if (rope.local && scratch.localRopeAngles) writeRopeAngles(device, rope.local, scratch.localRopeAngles, row, chunk);
  }
}

function writeRopeAngles(
  device: Device,
  rope: RopeFrequencies,
  angles: Tensor,
  row: number,
  { sequence, tokens }: Chunk,
  sharpened = false,
): void {
  const { cos, sin } = ropeTable(rope, sequence.length, tokens.length, sharpened);
  const pairs = rope.frequencies.length;
  const data = new Float32Array(2 * pairs * tokens.length);
  for (let i = 0; i < cos.length; i++) {
    data[2 * i] = cos[i];
    data[2 * i + 1] = sin[i];
  }
  device.writeRows(angles, row, data);
}

/**
 * Fills a sequence with keys and values that `observe` saw, instead of running its tokens; layers below `firstLayer`
 * stay empty. `k` and `v` are [layer][token][kv head][dim].
 */
export async function restoreKeysAndValues(
  device: Device,
  scratch: Scratch,
  sequence: Sequence,
  firstLayer: number,
  k: readonly Float32Array[],
  v: readonly Float32Array[],
): Promise<void> {
  const { cols } = scratch.k;
  const tokens = k[firstLayer].length / cols;
  for (let done = 0; done < tokens; ) {
    const count = Math.min(scratch.rows, tokens - done);
    const runs = sequence.plan(count).map(run => ({ ...run, view: sequence.view }));
    await device.ensureMemory?.([sequence.view]);
    for (let layer = firstLayer; layer < k.length; layer++) {
      const rows = (x: Float32Array) => x.subarray(done * cols, (done + count) * cols);
      device.writeRows(scratch.k, 0, rows(k[layer]));
      device.writeRows(scratch.v, 0, rows(v[layer]));
      for (const run of runs) {
        device.seal(layer, sealRequests(sequence.view, run));
        device.append(layer, scratch.k, scratch.v, [run]);
      }
    }
    sequence.commit(count);
    done += count;
  }
}
