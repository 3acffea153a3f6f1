/**
 * One pass of the network over a batch of chunks, each of its own sequence: the same code on every device.
 *
 * Rows of all chunks go through the matrices together; attention looks at each chunk by itself, in runs of rows that
 * read the same sealed pages. A page is sealed, layer by layer, just before the first row that reads it from codes, so
 * how a prompt was cut into chunks cannot show in the result.
 */
import type { Run, Sequence } from '../cache/sequence.ts';
import { createTurns } from '../event-loop.ts';
import type { Choice, Device, KvRun, Projection, Tensor } from '../kernel/device.ts';
import type { ModelConfig } from './config.ts';
import { type RopeFrequencies, ropeTable } from './rope.ts';
import type { ModelWeights } from './weights.ts';

export interface Chunk {
  sequence: Sequence;
  /** Ids, or the names of tokens that the device chose. */
  tokens: ArrayLike<number>;
  /** Whether they are a prompt's, or a part of one: what is longer than a token, unless it says otherwise. */
  prompt?: boolean;
  /** Logits of all rows, or of the last one alone. */
  logits: 'all' | 'last' | 'none';
  /** Of the last row, the chosen token will do where the device can choose. */
  choice?: Omit<Choice, 'row'>;
}

/** Activations, made once for the largest batch. */
export interface Scratch {
  rows: number;
  x: Tensor;
  normed: Tensor;
  q: Tensor;
  k: Tensor;
  v: Tensor;
  attended: Tensor;
  gate: Tensor;
  up: Tensor;
  angles: Tensor;
  /** Rows whose logits are wanted, gathered. */
  chosen: Tensor;
  logits: Tensor;
  /** Made with the first pass. */
  products: WeakMap<ModelWeights, LayerProducts[]>;
}

/** The products of a layer. The lists stay the same, so that a device can remember what it found out about them. */
interface LayerProducts {
  qkv: readonly Projection[];
  output: readonly Projection[];
  gates: readonly Projection[];
  down: readonly Projection[];
}

/** Rows of logits made at once: a row is as long as the vocabulary. */
const LOGIT_ROWS = 16;

export function createScratch(device: Device, config: ModelConfig, rows: number): Scratch {
  const { width, heads, kvHeads, headDim, ffn, vocab, rope } = config;
  return {
    rows,
    x: device.tensor(rows, width),
    normed: device.tensor(rows, width),
    q: device.tensor(rows, heads * headDim),
    k: device.tensor(rows, kvHeads * headDim),
    v: device.tensor(rows, kvHeads * headDim),
    attended: device.tensor(rows, heads * headDim),
    gate: device.tensor(rows, ffn),
    up: device.tensor(rows, ffn),
    angles: device.tensor(rows, rope.dims),
    chosen: device.tensor(LOGIT_ROWS, width),
    logits: device.tensor(LOGIT_ROWS, vocab),
    products: new WeakMap(),
  };
}

function productsOf(scratch: Scratch, weights: ModelWeights): LayerProducts[] {
  const { x, q, k, v, gate, up } = scratch;
  const products =
    scratch.products.get(weights) ??
    weights.layers.map(w => ({
      qkv: [
        { weights: w.q, out: q, bias: w.qBias },
        { weights: w.k, out: k, bias: w.kBias },
        { weights: w.v, out: v, bias: w.vBias },
      ],
      output: [{ weights: w.output, out: x, add: true }],
      gates: [
        { weights: w.gate, out: gate },
        { weights: w.up, out: up },
      ],
      down: [{ weights: w.down, out: x, add: true }],
    }));
  scratch.products.set(weights, products);
  return products;
}

export interface Hooks {
  /** Each wanted row of logits, in order. */
  onLogits(chunk: Chunk, row: number, logits: Float32Array): void;
  /** For chunks with a choice, where the device can choose: the token in place of the last row of logits. */
  onToken?(chunk: Chunk, id: number | undefined): void;
  /** A name for that token, as soon as all is recorded: another pass may be given it. */
  onNamed?(chunk: Chunk, name: number): void;
  /** Sees every layer of the batch between RoPE and attention, which wait for it. The tensors are the pass's own. */
  observe?(layer: number, seen: Seen): void | Promise<void>;
  /** Begins at this layer instead of the embedding, from rows that `observe` saw there as `x`, chunk by chunk. */
  resume?: { layer: number; rows(chunk: Chunk): Float32Array };
}

export interface Seen {
  rows: number;
  /** What comes into the layer. */
  x: Tensor;
  q: Tensor;
  k: Tensor;
  v: Tensor;
}

interface Part {
  chunk: Chunk;
  /** Its first row in the batch. */
  row: number;
  runs: Run[];
}

/** A pass whose operations are all recorded. */
export interface Pass {
  /** Once every wanted row of logits was handed out. Another pass may begin before that, in the same scratch. */
  delivered: Promise<void>;
  /** The longest time, in ms, that the event loop had to wait. */
  longestWait: number;
}

/**
 * Records the pass in order; only the logits are waited for, which are handed out row by row. Nothing else may use the
 * scratch until it returns: it lets the event loop have its turn between operations that take long.
 */
export async function forward(
  device: Device,
  config: ModelConfig,
  weights: ModelWeights,
  rope: RopeFrequencies,
  scratch: Scratch,
  chunks: readonly Chunk[],
  { onLogits, onToken, onNamed, observe, resume }: Hooks,
): Promise<Pass> {
  const { headDim, normEps, attentionScale } = config;
  const { x, normed, q, k, v, attended, gate, up, angles } = scratch;
  const { parts, rows, prompts } = placed(chunks);
  const ready = device.ready?.(chunks.map(({ sequence }) => sequence.view));
  if (ready) await ready;
  if (resume) for (const { chunk, row } of parts) device.write(x, row, resume.rows(chunk));
  else device.embed(weights.embedding, idsOf(parts, rows), x);
  for (const { chunk, row } of parts) writeAngles(device, rope, angles, row, chunk);
  const rounds = roundsOf(parts);
  const turns = createTurns();
  const products = productsOf(scratch, weights);

  for (let layer = resume?.layer ?? 0; layer < weights.layers.length; layer++) {
    const w = weights.layers[layer];
    const { qkv, output, gates, down } = products[layer];
    device.norm(x, rows, w.attentionNorm, normEps, normed);
    device.project(normed, rows, qkv, prompts);
    if (w.qNorm && w.kNorm) {
      device.norm(q, rows, w.qNorm, normEps, q);
      device.norm(k, rows, w.kNorm, normEps, k);
    }
    device.rope(q, rows, headDim, angles);
    device.rope(k, rows, headDim, angles);
    if (turns.due()) await turns.take();
    if (observe) {
      await observe(layer, { rows, x, q, k, v });
      turns.taken();
    }
    for (const runs of rounds) {
      for (const run of runs) sealPage(device, layer, run);
      device.append(layer, k, v, runs);
      device.attend(layer, q, attended, runs, attentionScale);
      if (turns.due()) await turns.take();
    }
    device.project(attended, rows, output, prompts);
    device.norm(x, rows, w.ffnNorm, normEps, normed);
    if (turns.due()) await turns.take();
    device.project(normed, rows, gates, prompts);
    device.swiglu(gate, up, rows);
    if (turns.due()) await turns.take();
    device.project(gate, rows, down, prompts);
    if (turns.due()) await turns.take();
  }

  device.norm(x, rows, weights.outputNorm, normEps, normed);
  for (const { chunk } of parts) chunk.sequence.commit(chunk.tokens.length);
  const wanted = parts.flatMap(wantedRows);
  const answers: (() => Promise<void>)[] = [];
  for (let first = 0; first < wanted.length; first += LOGIT_ROWS) {
    const rows = wanted.slice(first, first + LOGIT_ROWS);
    // Often they are all rows that there are.
    const ready = first === 0 && rows.every(({ part, row }, i) => part.row + row === i);
    for (let i = 0; i < rows.length && !ready; i++)
      device.copy(normed, rows[i].part.row + rows[i].row, scratch.chosen, i, 1);
    const source = ready ? normed : scratch.chosen;
    device.project(source, rows.length, [{ weights: weights.unembedding, out: scratch.logits }]);
    const asChoice = ({ part: { chunk } }: { part: Part }, i: number): Choice[] =>
      chunk.logits === 'last' && chunk.choice && device.choose && onToken ? [{ ...chunk.choice, row: i }] : [];
    const choices = rows.flatMap(asChoice);
    const chosen = choices.length > 0 ? device.choose!(scratch.logits, choices) : undefined;
    rows.forEach(({ part: { chunk }, row }, i) => {
      const choice = choices.findIndex(one => one.row === i);
      if (choice >= 0) {
        onNamed?.(chunk, chosen!.names[choice]);
        answers.push(async () => onToken!(chunk, (await chosen!.ids)[choice]));
      } else {
        const logits = device.read(scratch.logits, i);
        answers.push(async () => onLogits(chunk, row, await logits));
      }
    });
    if (turns.due()) await turns.take();
  }
  // All is recorded before anything is waited for: another pass may begin meanwhile, in the same scratch.
  const deliver = async () => {
    for (const answer of answers) await answer();
  };
  return { delivered: deliver(), longestWait: turns.longest() };
}

/**
 * Gives a sequence keys and values that `observe` saw, in place of running their tokens; layers below `first` stay
 * empty. `k` and `v` are [layer][token][kv head][dim].
 */
export async function restore(
  device: Device,
  scratch: Scratch,
  sequence: Sequence,
  first: number,
  k: readonly Float32Array[],
  v: readonly Float32Array[],
): Promise<void> {
  const { cols } = scratch.k;
  const tokens = k[first].length / cols;
  for (let done = 0; done < tokens; ) {
    const count = Math.min(scratch.rows, tokens - done);
    const runs = sequence.plan(count).map(run => ({ ...run, view: sequence.view }));
    await device.ready?.([sequence.view]);
    for (let layer = first; layer < k.length; layer++) {
      const rows = (x: Float32Array) => x.subarray(done * cols, (done + count) * cols);
      device.write(scratch.k, 0, rows(k[layer]));
      device.write(scratch.v, 0, rows(v[layer]));
      for (const run of runs) {
        sealPage(device, layer, run);
        device.append(layer, scratch.k, scratch.v, [run]);
      }
    }
    sequence.commit(count);
    done += count;
  }
}

/** Whether a chunk's rows are a prompt's. Whoever cuts a chunk says so for all of its parts. */
export const isPrompt = ({ prompt, tokens }: Chunk): boolean => prompt ?? tokens.length > 1;

/** Every chunk's rows: those of prompts come last. */
function placed(chunks: readonly Chunk[]): { parts: Part[]; rows: number; prompts: number } {
  const parts = chunks.map(chunk => ({ chunk, row: 0, runs: chunk.sequence.plan(chunk.tokens.length) }));
  let rows = 0;
  let written = 0;
  for (const prompt of [false, true]) {
    for (const part of parts.filter(({ chunk }) => isPrompt(chunk) === prompt)) {
      part.row = rows;
      rows += part.chunk.tokens.length;
    }
    if (!prompt) written = rows;
  }
  return { parts, rows, prompts: rows - written };
}

/** The tokens, row by row. */
function idsOf(parts: readonly Part[], rows: number): Uint32Array {
  const ids = new Uint32Array(rows);
  for (const { chunk, row } of parts) ids.set(Array.from(chunk.tokens), row);
  return ids;
}

/** A chunk's runs follow one another; the first runs of all chunks go together, then the second ones, and so on. */
function roundsOf(parts: readonly Part[]): (KvRun & Run)[][] {
  const rounds: (KvRun & Run)[][] = [];
  for (const { chunk, row, runs } of parts) {
    runs.forEach((run, i) => {
      rounds[i] ??= [];
      rounds[i].push({ ...run, view: chunk.sequence.view, row: row + run.row });
    });
  }
  return rounds;
}

/** The rows of a part whose logits are wanted. */
function wantedRows(part: Part): { part: Part; row: number }[] {
  const { logits, tokens } = part.chunk;
  const count = logits === 'all' ? tokens.length : logits === 'last' ? 1 : 0;
  return Array.from({ length: count }, (_, i) => ({ part, row: tokens.length - count + i }));
}

/** Seals the page that this run is the first to read from codes, if there is one. */
function sealPage(device: Device, layer: number, { view, sealed, seals }: KvRun & Run): void {
  if (seals) device.seal(view, layer, sealed - 1, view.leaves[sealed - 1 - view.firstLeaf]);
}

function writeAngles(
  device: Device,
  rope: RopeFrequencies,
  angles: Tensor,
  row: number,
  { sequence, tokens }: Chunk,
): void {
  const { cos, sin } = ropeTable(rope, sequence.length, tokens.length);
  const pairs = rope.frequencies.length;
  const data = new Float32Array(2 * pairs * tokens.length);
  for (let i = 0; i < cos.length; i++) {
    data[2 * i] = cos[i];
    data[2 * i + 1] = sin[i];
  }
  device.write(angles, row, data);
}
