/**
 * How long does decoding a token take, by depth and codec, compared with llama.cpp on the same file and threads?
 *
 * Validates first: before a page is sealed, every codec must give the same logits as f16. Deep contexts are filled by
 * repeating the pages of a real prompt: time does not depend on their contents.
 */

import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { formatTable } from '../src/cli/table.ts';
import { parseSpec } from '../src/codec/spec.ts';
import { type Engine, loadEngine, openModelFile, planShape } from '../src/engine/engine.ts';
import { step } from '../src/engine/step.ts';
import { createPlan } from '../src/plan/plan.ts';
import { InputError } from '../src/util/errors.ts';
import { benchPlan, fillTo, promptTokens } from './fill-context.ts';

interface Options {
  model: string;
  kv: string;
  depths: string;
  threads: string;
  peers: boolean;
  json: boolean;
}

interface Row {
  name: string;
  /** Best milliseconds per token, by depth. */
  ms: Record<number, number>;
  /** Tokens per second of a prompt of 512 tokens. */
  prefill?: number;
  /** Milliseconds of sealing per token. */
  sealing?: number;
}

const STEPS = 24;
const PROMPT = 512;
const ROUNDS = 3;

export async function benchDecode(options: Options): Promise<void> {
  const depths = options.depths.split(',').map(Number);
  const threads = Number(options.threads);
  const specs = options.kv.split(',');
  const file = await openModelFile(options.model);
  const { layers, kvHeads } = file.config;
  const cache = { plan: createPlan(parseSpec('f16'), planShape(file)), context: Math.max(...depths) + 1024 };
  const engine = await loadEngine(file, cache, { device: 'wasm', threads, prefillChunk: PROMPT });
  await validate(engine, specs);
  const ours: Row[] = [];
  for (const spec of specs) ours.push(await measureCodec(engine, spec, depths));
  await engine.dispose();
  const peers = options.peers ? runLlama(options.model, depths, threads) : [];
  const best: Row = {
    name: 'llama.cpp, best',
    ms: Object.fromEntries(depths.map(depth => [depth, Math.min(...peers.map(row => row.ms[depth] ?? Infinity))])),
    prefill: Math.max(...peers.map(row => row.prefill ?? 0)),
  };
  const rows = peers.length > 0 ? [...peers, best, ...ours] : ours;
  if (options.json) console.log(JSON.stringify(rows, null, 1));
  else console.log(render(rows, best, depths, layers * kvHeads, threads));
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

async function measureCodec(engine: Engine, spec: string, depths: readonly number[]): Promise<Row> {
  const plan = benchPlan(spec, planShape(engine));
  const ms: Record<number, number> = {};
  let prefill = 0;
  for (const depth of depths) {
    const sequence = engine.openSequence(plan, depth + 1024);
    const start = performance.now();
    await step(engine, [{ sequence, tokens: promptTokens(PROMPT), logits: 'last' }]);
    prefill = Math.max(prefill, (PROMPT / (performance.now() - start)) * 1000);
    if (depth > PROMPT) await fillTo(engine, sequence, depth);
    else sequence.crop(depth);
    let best = Number.POSITIVE_INFINITY;
    for (let i = 0; i < STEPS * ROUNDS; i++) {
      const from = performance.now();
      await step(engine, [{ sequence, tokens: [20 + i], logits: 'last' }]);
      best = Math.min(best, performance.now() - from);
    }
    ms[depth] = best;
    sequence.dispose();
  }
  return { name: `kvasir ${spec}`, ms, prefill, sealing: await measureSealing(engine, spec) };
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

/** Runs llama.cpp in a separate process: f16, flash attention on and off. */
function runLlama(model: string, depths: readonly number[], threads: number): Row[] {
  const script = fileURLToPath(new URL('./llama.js', import.meta.url));
  return ['on', 'off'].map(flash => {
    console.error(`bench: llama.cpp, flash attention ${flash} (it reads the whole deepest prompt)`);
    const args = [script, model, flash, depths.join(), String(threads), String(STEPS * ROUNDS)];
    const { stdout, status, stderr } = spawnSync(process.execPath, args, { encoding: 'utf8' });
    if (status !== 0) throw new InputError(`llama.cpp failed: ${stderr.slice(-400)}`);
    return { name: `llama.cpp f16, flash ${flash}`, ...JSON.parse(stdout) };
  });
}

function render(rows: readonly Row[], best: Row, depths: readonly number[], heads: number, threads: number): string {
  const deepest = Math.max(...depths);
  const shallow = Math.min(...depths);
  // Needs two depths: the difference is the time of attention.
  const attention = (row: Row) => ((row.ms[deepest] - row.ms[shallow]) * 1e6) / (heads * (deepest - shallow));
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
    (row.prefill ?? 0).toFixed(0),
    best.prefill ? `${((row.prefill ?? 0) / best.prefill).toFixed(2)}x` : '-',
    row.sealing === undefined ? '-' : `${((100 * row.sealing) / row.ms[shallow]).toFixed(1)} %`,
  ]);
  return [
    `Best milliseconds per token of ${STEPS * ROUNDS}, ${threads} threads; x: speedup over llama.cpp's best setting.`,
    formatTable(header, lines),
    `attention: nanoseconds per cached token and KV head, from depth ${shallow} to ${deepest}. prefill: ${PROMPT} tokens.`,
    `sealing: its share of the time per token at depth ${shallow}, where a token is cheapest.`,
  ].join('\n');
}
