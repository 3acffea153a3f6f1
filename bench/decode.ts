/**
 * How long does decoding a token take, by depth and codec, compared with llama.cpp on the same file and threads?
 *
 * Validates first: before a page is sealed, every codec must give the same logits as f16. Deep contexts are filled by
 * repeating the pages of a real prompt: time does not depend on their contents. All take turns at every depth, since the
 * speed of a machine changes within minutes.
 */

import { existsSync, readFileSync } from 'node:fs';
import { cpus } from 'node:os';
import { formatTable } from '../src/cli/table.ts';
import { parseSpec } from '../src/codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../src/engine/engine.ts';
import { step } from '../src/engine/step.ts';
import { createPlan } from '../src/plan/plan.ts';
import { InputError } from '../src/util/errors.ts';
import type { PromptContender } from './concurrent.ts';
import { benchPlan, fillTo, promptTokens } from './fill-context.ts';
import { spawnLlama } from './llama-process.ts';

interface Options {
  model: string;
  kv: string;
  depths: string;
  threads: string;
  peers: boolean;
  json: boolean;
}

export interface DecodeRow {
  name: string;
  /** Milliseconds per token in the best round, by depth. */
  ms: Record<number, number>;
  /** Tokens per second of a prompt of 512 tokens. */
  prefill: number;
  /** Milliseconds of sealing per token. */
  sealing?: number;
}

/** Tokens per round. */
const STEPS = 24;
const PROMPT = 512;
const ROUNDS = 4;

export async function benchDecode(options: Options): Promise<void> {
  const depths = options.depths.split(',').map(Number);
  const threads = Number(options.threads);
  const { theirs, best, ours, heads } = await measureDecode({ ...options, depths, threads });
  const all = [...theirs, ...(options.peers ? [best] : []), ...ours];
  if (options.json) console.log(JSON.stringify(all, null, 1));
  else console.log(render(all, best, depths, heads, threads));
}

/** Times of llama.cpp's settings, the best of them, and ours; `heads` are the KV heads of all layers. */
export async function measureDecode(
  options: Omit<Options, 'depths' | 'threads' | 'json'> & { depths: readonly number[]; threads: number },
): Promise<{ theirs: DecodeRow[]; best: DecodeRow; ours: DecodeRow[]; heads: number }> {
  const { depths, threads } = options;
  const specs = options.kv.split(',');
  const file = await openModelFile(options.model);
  const { layers, kvHeads } = file.config;
  const context = Math.max(...depths) + PROMPT + STEPS * (ROUNDS + 1);
  const cache = { plan: createPlan(parseSpec('f16'), planShape(file)), context };
  const engine = await loadEngine(file, cache, { device: 'wasm', threads, prefillChunk: PROMPT });
  await validate(engine, specs);
  const setup = { model: options.model, threads, sequences: 1, context, tokens: STEPS };
  const flash = options.peers ? [true, false] : [];
  const peers = await Promise.all(
    flash.map(async flash => {
      const peer = await spawnLlama(setup, { kv: 'F16', flash });
      return { ...peer, name: `llama.cpp ${peer.name}` };
    }),
  );
  const ours = specs.map(spec => openCodec(engine, spec, context));
  const rows = new Map<PromptContender, DecodeRow>();
  try {
    for (const one of [...peers, ...ours]) rows.set(one, { name: one.name, ms: {}, prefill: 0 });
    for (let round = 0; round < ROUNDS; round++)
      for (const [{ prefill }, row] of rows) row.prefill = Math.max(row.prefill, await prefill(PROMPT));
    for (const depth of depths) await measureDepth(rows, depth);
    for (const [i, one] of ours.entries()) rows.get(one)!.sealing = await measureSealing(engine, specs[i]);
  } finally {
    await Promise.all([...peers, ...ours].map(({ close }) => close()));
    await engine.dispose();
  }
  const theirs = peers.map(peer => rows.get(peer)!);
  const best: DecodeRow = {
    name: 'llama.cpp, best',
    ms: Object.fromEntries(depths.map(depth => [depth, Math.min(...theirs.map(({ ms }) => ms[depth]))])),
    prefill: Math.max(...theirs.map(({ prefill }) => prefill)),
  };
  return { theirs, best, ours: ours.map(one => rows.get(one)!), heads: layers * kvHeads };
}

/** The CPU, with the instructions that llama.cpp uses where there are any, and WebAssembly does not have. */
export function describeCpu(): string {
  const flags = existsSync('/proc/cpuinfo') ? readFileSync('/proc/cpuinfo', 'utf8') : '';
  const found = ['avx512_vnni', 'amx_int8'].filter(flag => flags.includes(flag));
  return [cpus()[0]?.model, ...found].join(', ');
}

async function measureDepth(rows: ReadonlyMap<PromptContender, DecodeRow>, depth: number): Promise<void> {
  for (const [{ name, fill }] of rows) {
    console.error(`bench: ${name} reads a prompt of ${depth} tokens`);
    await fill(depth, 1);
  }
  for (let round = 0; round < ROUNDS; round++)
    for (const [{ decode }, { ms }] of rows)
      ms[depth] = Math.min(ms[depth] ?? Number.POSITIVE_INFINITY, 1000 / (await decode(1)));
}

/** A short prompt is read from the f16 tail only, so the logits must not depend on the codec. */
async function validate(engine: Engine, specs: readonly string[]): Promise<void> {
  const reference = await computeLogits(engine, 'f16');
  for (const spec of specs) {
    const logits = await computeLogits(engine, spec);
    if (logits.some((x, i) => x !== reference[i]))
      throw new InputError(`${spec} changes logits before any page is sealed.`);
  }
}

async function computeLogits(engine: Engine, spec: string): Promise<Float32Array> {
  const sequence = engine.openSequence(benchPlan(spec, planShape(engine)), 512);
  let result = new Float32Array();
  await step(engine, [{ sequence, tokens: promptTokens(100), logits: 'last' }], {
    onLogits: (_chunk, _row, logits) => {
      result = new Float32Array(logits);
    },
  });
  sequence.dispose();
  return result;
}

function openCodec(engine: Engine, spec: string, context: number): PromptContender {
  const plan = benchPlan(spec, planShape(engine));
  const open = () => engine.openSequence(plan, context);
  let sequence = open();
  let next = 0;
  /** Tokens per second of so many passes. */
  const timed = async (passes: number, tokens: () => number[]): Promise<number> => {
    const start = performance.now();
    let count = 0;
    for (let i = 0; i < passes; i++) {
      const some = tokens();
      count += some.length;
      await step(engine, [{ sequence, tokens: some, logits: 'last' }]);
    }
    return (1000 * count) / (performance.now() - start);
  };
  const restart = () => {
    sequence.dispose();
    sequence = open();
  };
  return {
    name: `kvasir ${spec}`,
    async prefill(count) {
      restart();
      return timed(1, () => promptTokens(count));
    },
    async fill(depth) {
      restart();
      await step(engine, [{ sequence, tokens: promptTokens(PROMPT), logits: 'none' }]);
      if (depth > PROMPT) await fillTo(engine, sequence, depth);
      else sequence.crop(depth);
    },
    decode: () => timed(STEPS, () => [20 + (next++ % 900)]),
    close: async () => sequence.dispose(),
  };
}

/** The time to seal one page of all layers, divided by its tokens. */
async function measureSealing(engine: Engine, spec: string): Promise<number> {
  const plan = benchPlan(spec, planShape(engine));
  const sequence = engine.openSequence(plan, 1024);
  await step(engine, [{ sequence, tokens: promptTokens(PROMPT), logits: 'none' }]);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < STEPS; i++) {
    const from = performance.now();
    for (let layer = 0; layer < engine.config.layers; layer++)
      engine.device.seal(layer, [{ view: sequence.view, page: sequence.view.leaves.length - 1 }]);
    best = Math.min(best, performance.now() - from);
  }
  sequence.dispose();
  return best / plan.pageTokens;
}

function render(
  rows: readonly DecodeRow[],
  best: DecodeRow,
  depths: readonly number[],
  heads: number,
  threads: number,
): string {
  const deepest = Math.max(...depths);
  const shallow = Math.min(...depths);
  // Needs two depths: the difference is the time of attention.
  const attention = (row: DecodeRow) => ((row.ms[deepest] - row.ms[shallow]) * 1e6) / (heads * (deepest - shallow));
  const ratio = (peer: number, own: number) => (Number.isFinite(peer) ? `${(peer / own).toFixed(2)}x` : '-');
  const header = [
    '',
    ...depths.flatMap(depth => [`ms at ${depth}`, 'x']),
    'attention ns',
    'x',
    'prefill/s',
    'x',
    'sealing',
  ];
  const lines = rows.map(row => [
    row.name,
    ...depths.flatMap(depth => [row.ms[depth].toFixed(2), ratio(best.ms[depth], row.ms[depth])]),
    deepest > shallow ? attention(row).toFixed(1) : '-',
    ratio(attention(best), attention(row)),
    row.prefill.toFixed(0),
    best.prefill > 0 ? `${(row.prefill / best.prefill).toFixed(2)}x` : '-',
    row.sealing === undefined ? '-' : `${((100 * row.sealing) / row.ms[shallow]).toFixed(1)} %`,
  ]);
  return [
    `${describeCpu()}, Node ${process.versions.node}, ${threads} threads.`,
    `Milliseconds per token in the best of ${ROUNDS} rounds of ${STEPS} tokens, in turns. x: speedup over llama.cpp's best setting.`,
    formatTable(header, lines),
    `attention: nanoseconds per cached token and KV head, from depth ${shallow} to ${deepest}. prefill: ${PROMPT} tokens.`,
    `sealing: its share of the time per token at depth ${shallow}, where a token is cheapest.`,
  ].join('\n');
}
