/**
 * The forward pass over a batch of chunks, each of its own sequence. The same code runs on every device.
 *
 * The rows of all chunks share the matrix multiplications. Attention runs per chunk, in runs of rows that read the same
 * sealed pages. A page is sealed, layer by layer, just before the first row that reads its codes, so the result does
 * not depend on how a prompt was split into chunks.
 */
import type { Sequence, SequenceRun } from '../cache/sequence.ts';
import type {
  Device,
  KvBlocks,
  KvRun,
  KvView,
  Projection,
  SamplingRequest,
  SealRequest,
  Tensor,
} from '../kernel/device.ts';
import { createYielder } from '../platform/event-loop.ts';
import { type CodeCheck, startCheck } from './code-check.ts';
import {
  createFeedForwardScratch,
  type FeedForwardProjections,
  type FeedForwardScratch,
  feedForward,
  feedForwardProjections,
} from './feed-forward.ts';
import type { ModelConfig } from './model-config.ts';
import { type RopeFrequencies, ropeTable } from './rope.ts';
import type { ModelWeights } from './weights.ts';

export interface Chunk {
  sequence: Sequence;
  /** Token ids, or handles of tokens that the device sampled. */
  tokens: ArrayLike<number>;
  /** Whether the rows are prefill or decode; by default a chunk of more than one token is prefill. */
  prefill?: boolean;
  /** The last tokens that are guesses: they are added without ids. Default: 0. */
  drafts?: number;
  /** Read the f16 pages of a sequence in shadow or two-tier mode, instead of its codes. Default: false. */
  exact?: boolean;
  /** Which rows need logits. */
  logits: 'all' | 'last' | 'none';
  /** Sample the last row on the device, if it can, and return the token instead of its logits. */
  sampling?: Omit<SamplingRequest, 'row'>;
}

/** Activations, allocated once for the largest batch. */
export interface Scratch extends FeedForwardScratch {
  rows: number;
  /** The residual stream. */
  x: Tensor;
  normed: Tensor;
  q: Tensor;
  k: Tensor;
  v: Tensor;
  attention: Tensor;
  ropeAngles: Tensor;
  /** Of queries, if theirs are others. */
  queryAngles?: Tensor;
  /** Of layers with a window, if theirs are others. */
  localRopeAngles?: Tensor;
  /** The rows that need logits, gathered. */
  outputRows: Tensor;
  logits: Tensor;
  /** Filled by the first pass. */
  projections: WeakMap<ModelWeights, LayerProjections[]>;
}

/** A model on a device, and what a pass needs. */
export interface LoadedModel {
  readonly device: Device;
  readonly config: ModelConfig;
  readonly weights: ModelWeights;
  readonly rope: RopeFrequencies;
  readonly scratch: Scratch;
}

/** The matrix multiplications of a layer. The arrays are created once, so that a device can cache state per array. */
interface LayerProjections extends FeedForwardProjections {
  qkv: readonly Projection[];
  attentionOutput: readonly Projection[];
}

/** Max rows of logits per multiplication: each row is as long as the vocabulary. */
const MAX_LOGIT_ROWS = 64;

export function createScratch(device: Device, config: ModelConfig, rows: number): Scratch {
  const { width, heads, kvHeads, headDim, vocab, rope, localRope } = config;
  const logitRows = Math.min(rows, MAX_LOGIT_ROWS);
  return {
    rows,
    x: device.createTensor(rows, width),
    normed: device.createTensor(rows, width),
    q: device.createTensor(rows, heads * headDim),
    k: device.createTensor(rows, kvHeads * headDim),
    v: device.createTensor(rows, kvHeads * headDim),
    attention: device.createTensor(rows, heads * headDim),
    ...createFeedForwardScratch(device, config, rows),
    ropeAngles: device.createTensor(rows, rope.dims),
    ...(rope.sharpening && { queryAngles: device.createTensor(rows, rope.dims) }),
    ...(localRope && { localRopeAngles: device.createTensor(rows, localRope.dims) }),
    outputRows: device.createTensor(logitRows, width),
    logits: device.createTensor(logitRows, vocab),
    projections: new WeakMap(),
  };
}

function projectionsOf(scratch: Scratch, weights: ModelWeights): LayerProjections[] {
  const { x, normed, q, k, v } = scratch;
  /** Added to the residual stream, or normalized first. */
  const output = (norm?: Tensor) => (norm ? { out: normed } : { out: x, accumulate: true });
  const projections =
    scratch.projections.get(weights) ??
    weights.layers.map(w => ({
      qkv: [
        { weights: w.q, out: q, bias: w.qBias },
        { weights: w.k, out: k, bias: w.kBias },
        { weights: w.v, out: v, bias: w.vBias },
      ],
      attentionOutput: [{ weights: w.attentionOutput, bias: w.attentionOutputBias, ...output(w.attentionOutputNorm) }],
      ...feedForwardProjections(scratch, w, output(w.ffnOutputNorm)),
    }));
  scratch.projections.set(weights, projections);
  return projections;
}

export interface Hooks {
  /** Called when the pass has its memory, before anything is recorded. */
  onReady?(): void;
  /** Called for each row that needs logits, in order. */
  onLogits(chunk: Chunk, row: number, logits: Float32Array): void;
  /** Called instead of `onLogits` with a token that the device sampled. */
  onToken?(chunk: Chunk, id: number | undefined): void;
  /** Called with the handle of that token when the pass is recorded: the next pass can take it as input at once. */
  onHandle?(chunk: Chunk, handle: number): void;
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

interface PlacedRuns {
  chunk: Pick<Chunk, 'sequence' | 'exact'>;
  /** First row in the batch. */
  row: number;
  runs: readonly SequenceRun[];
  prefill?: boolean;
}

interface PlacedChunk extends PlacedRuns {
  chunk: Chunk;
}

/** A pass whose operations are all recorded. */
export interface Pass {
  /** Resolves when all logits and tokens are delivered. The next pass may start before, in the same scratch. */
  delivered: Promise<void>;
  /** The longest time, in ms, that the event loop was blocked. */
  longestBlockMs: number;
}

/**
 * Records the pass; `delivered` then waits for its logits. It yields to the event loop between long operations, and
 * nothing else may use the scratch until it returns.
 */
export async function forward(
  { device, config, weights, rope, scratch }: LoadedModel,
  chunks: readonly Chunk[],
  { onReady, onLogits, onToken, onHandle, observe, codeCheck, resume }: Hooks,
): Promise<Pass> {
  const { headDim, normEps, embeddingScale, layerRopes, logitSoftcap, ropeFirst } = config;
  const attendOptions = (layer: number) => ({
    scale: config.attentionScale,
    softcap: config.attentionSoftcap,
    sinkLogits: weights.layers[layer].sinkLogits,
  });
  const { x, normed, q, k, v, attention } = scratch;
  const { placed, rows, prefillRows } = assignRows(chunks);
  const check = codeCheck && startCheck(device, codeCheck, placed, attendOptions);
  const views: KvBlocks[] = chunks.flatMap(({ sequence: { view, exactView } }) =>
    exactView ? [view, exactView] : [view],
  );
  if (check) views.push(check.view);
  const memoryReady = device.ensureMemory?.(views);
  if (memoryReady) await memoryReady;
  onReady?.();
  if (resume) for (const { chunk, row } of placed) device.writeRows(x, row, resume.rows(chunk));
  else device.embed(weights.embedding, tokenIdsByRow(placed, rows), x, embeddingScale);
  for (const { chunk, row } of placed) {
    writeRopeAngles(device, rope, scratch.ropeAngles, row, chunk);
    if (scratch.queryAngles) writeRopeAngles(device, rope, scratch.queryAngles, row, chunk, true);
    if (rope.local && scratch.localRopeAngles) writeRopeAngles(device, rope.local, scratch.localRopeAngles, row, chunk);
  }
  const rounds = groupRunsByRound(placed);
  const yielder = createYielder();
  const projections = projectionsOf(scratch, weights);
  const pass = { device, config, scratch, rows, prefillRows, yielder };

  for (let layer = resume?.layer ?? 0; layer < weights.layers.length; layer++) {
    const w = weights.layers[layer];
    const { qkv, attentionOutput } = projections[layer];
    // Attention: norm, q/k/v projections, RoPE, attention, output projection added to the residual stream.
    if (w.attentionNorm) device.rmsNorm(x, rows, w.attentionNorm, normEps, normed);
    device.project(w.attentionNorm ? normed : x, rows, qkv, prefillRows);
    const normalize = () => {
      if (!w.qNorm || !w.kNorm) return;
      device.rmsNorm(q, rows, w.qNorm, normEps, q);
      device.rmsNorm(k, rows, w.kNorm, normEps, k);
    };
    if (!ropeFirst) normalize();
    const angles = { global: scratch.ropeAngles, local: scratch.localRopeAngles, none: undefined }[
      layerRopes[layer] ?? 'none'
    ];
    if (angles) {
      device.rope(q, rows, headDim, (layerRopes[layer] === 'global' && scratch.queryAngles) || angles);
      device.rope(k, rows, headDim, angles);
    }
    if (ropeFirst) normalize();
    if (yielder.isDue()) await yielder.yieldNow();
    if (observe) {
      await observe(layer, { rows, x, q, k, v });
      yielder.noteYield();
    }
    for (const [round, { runs, seals }] of rounds.entries()) {
      if (seals.length > 0) device.seal(layer, seals);
      device.append(layer, k, v, runs);
      device.attend(layer, q, attention, runs, attendOptions(layer));
      check?.check(layer, round, q, attention);
      if (yielder.isDue()) await yielder.yieldNow();
    }
    device.project(attention, rows, attentionOutput, prefillRows);
    if (w.attentionOutputNorm) device.rmsNorm(normed, rows, w.attentionOutputNorm, normEps, x, true);
    // Feed-forward: norm, the network, added to the residual stream.
    if (w.ffnNorm) device.rmsNorm(x, rows, w.ffnNorm, normEps, normed);
    if (yielder.isDue()) await yielder.yieldNow();
    await feedForward(pass, w.ffnNorm ? normed : x, projections[layer]);
    if (w.ffnOutputNorm) device.rmsNorm(normed, rows, w.ffnOutputNorm, normEps, x, true);
    if (yielder.isDue()) await yielder.yieldNow();
  }

  // Output: norm, then the output head for the rows that need logits.
  device.rmsNorm(x, rows, weights.outputNorm, normEps, normed);
  for (const { chunk } of placed) chunk.sequence.commit(chunk.tokens.length, knownTokens(chunk));
  const needLogits = placed.flatMap(logitRows);
  const deliveries: (() => Promise<void>)[] = [];
  /** All reads begin now and are awaited in turn: if the first one fails, the others must not end the process. */
  const begin = <T>(read: Promise<T>): Promise<T> => {
    read.catch(() => {});
    return read;
  };
  if (check) {
    const compared = begin(check.read());
    deliveries.push(() => compared);
  }
  for (let first = 0; first < needLogits.length; first += scratch.logits.rows) {
    const rows = needLogits.slice(first, first + scratch.logits.rows);
    // Often these are the first rows of the batch: no copy.
    const inPlace = first === 0 && rows.every(({ placed, row }, i) => placed.row + row === i);
    for (let i = 0; i < rows.length && !inPlace; i++)
      device.copyRows(normed, rows[i].placed.row + rows[i].row, scratch.outputRows, i, 1);
    const source = inPlace ? normed : scratch.outputRows;
    device.project(source, rows.length, [{ weights: weights.outputHead, out: scratch.logits }]);
    if (logitSoftcap) device.softcap(scratch.logits, rows.length, logitSoftcap);
    const requests = rows.flatMap(({ placed: { chunk } }, i): SamplingRequest[] =>
      chunk.logits === 'last' && chunk.sampling && onToken ? [{ ...chunk.sampling, row: i }] : [],
    );
    const sampled = requests.length > 0 ? device.sampleTokens?.(scratch.logits, requests) : undefined;
    if (sampled) begin(sampled.ids);
    rows.forEach(({ placed: { chunk }, row }, i) => {
      const request = requests.findIndex(one => one.row === i);
      if (sampled && request >= 0) {
        onHandle?.(chunk, sampled.handles[request]);
        deliveries.push(async () => onToken?.(chunk, (await sampled.ids)[request]));
      } else {
        const logits = begin(device.readRows(scratch.logits, i));
        deliveries.push(async () => onLogits(chunk, row, await logits));
      }
    });
    if (yielder.isDue()) await yielder.yieldNow();
  }
  // Everything is recorded before anything is awaited, so the next pass can start in the same scratch.
  const deliver = async () => {
    for (const deliverRow of deliveries) await deliverRow();
  };
  return { delivered: deliver(), longestBlockMs: yielder.longestBlock() };
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

/** Whether a chunk's rows are prefill rows. The parts of a split chunk must all set `prefill`. */
export const isPrefill = ({ prefill, tokens }: Chunk): boolean => prefill ?? tokens.length > 1;

/** Gives every chunk its rows in the batch: decode rows first, then prefill rows. */
function assignRows(chunks: readonly Chunk[]): { placed: PlacedChunk[]; rows: number; prefillRows: number } {
  const placed = chunks.map(chunk => ({
    ...{ chunk, row: 0, prefill: isPrefill(chunk) },
    runs: chunk.sequence.plan(chunk.tokens.length),
  }));
  let rows = 0;
  let decodeRows = 0;
  for (const prefill of [false, true]) {
    for (const part of placed.filter(part => part.prefill === prefill)) {
      part.row = rows;
      rows += part.chunk.tokens.length;
    }
    if (!prefill) decodeRows = rows;
  }
  return { placed, rows, prefillRows: rows - decodeRows };
}

const knownTokens = ({ tokens, drafts }: Chunk): ArrayLike<number> =>
  drafts ? Array.prototype.slice.call(tokens, 0, -drafts) : tokens;

function tokenIdsByRow(placed: readonly PlacedChunk[], rows: number): Uint32Array {
  const ids = new Uint32Array(rows);
  for (const { chunk, row } of placed) ids.set(Array.from(chunk.tokens), row);
  return ids;
}

export interface Round {
  runs: KvRun[];
  seals: SealRequest[];
}

/** The runs of a chunk depend on each other, so round i holds the i-th run of every chunk. */
export function groupRunsByRound(placed: readonly PlacedRuns[]): Round[] {
  const rounds: Round[] = [];
  for (const { chunk, row, runs, prefill } of placed) {
    const { view, exactView } = chunk.sequence;
    runs.forEach((run, i) => {
      rounds[i] ??= { runs: [], seals: [] };
      const { runs, seals } = rounds[i];
      runs.push({ ...run, view: (chunk.exact && exactView) || view, row: row + run.row, prefill });
      seals.push(...sealRequests(view, run));
      if (exactView) seals.push(...sealRequests(exactView, run));
    });
  }
  return rounds;
}

/** The rows of a chunk that need logits, counted from its first row. */
function logitRows(placed: PlacedChunk): { placed: PlacedChunk; row: number }[] {
  const { logits, tokens } = placed.chunk;
  const count = logits === 'all' ? tokens.length : logits === 'last' ? 1 : 0;
  return Array.from({ length: count }, (_, i) => ({ placed, row: tokens.length - count + i }));
}

/** The page whose codes this run is the first to read, if there is one. */
function sealRequests(view: KvView, { sealsPage, sealedPages }: SequenceRun): SealRequest[] {
  return sealsPage ? [{ view, page: sealedPages - 1 }] : [];
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
