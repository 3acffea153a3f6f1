/**
 * Do the devices agree? Teacher-forced predictions on a real text, for each codec of --kv: wasm with int8 activations
 * (as in generation) against its precise mode over all positions, and the precise mode against js, the reference, over
 * the first positions only, because js is slow. Then perplexity against llama.cpp on the same rows, with f16 caches.
 *
 * With --kv '': the perplexity alone. With --device webgpu: the GPU against wasm, for each codec.
 */

import { spawnSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';
import { parseSpec } from '../src/codec/spec.ts';
import { type Engine, type EngineOptions, loadEngine, openModelFile, planShape } from '../src/engine/engine.ts';
import { logSoftmax } from '../src/engine/log-probs.ts';
import { resolveProfile } from '../src/engine/profile.ts';
import { step } from '../src/engine/step.ts';
import { measureDivergence } from '../src/eval/divergence.ts';
import { choosePlan, parsePlanSpec } from '../src/plan/auto.ts';
import { createPlan } from '../src/plan/plan.ts';
import { InputError } from '../src/util/errors.ts';

interface Options {
  device: string;
  kv: string;
  model: string;
  text: string;
  threads: string;
  positions: string;
  json: boolean;
  peers: boolean;
}

/** Positions compared with js. Packed caches need more: codes are read only after the first page. */
const JS_POSITIONS = { f16: 96, packed: 288 };
/** Rows of `positions` tokens for the perplexity; their second halves are scored. */
const PERPLEXITY_ROWS = 3;

interface Comparison {
  pair: string;
  positions: number;
  kld: number;
  top1: number;
  perplexity: string;
}

export async function benchAgree(options: Options): Promise<void> {
  const { model, text, threads, json, peers, device, kv } = options;
  const positions = Number(options.positions);
  const { tokenizer } = await readModelFile(model);
  const all = tokenizer.encode(await readFile(text, 'utf8'));
  const ids = all.slice(0, positions);
  const run = (options: EngineOptions, count: number, cache: string) =>
    predict(model, ids.slice(0, count), options, cache);
  const wasm = { device: 'wasm', threads: Number(threads) } as const;
  if (device === 'webgpu') {
    for (const cache of kv.split(',')) {
      for (const precise of [true, false]) {
        const reference = await run({ ...wasm, precise }, positions, cache);
        const found = await run({ device, precise }, positions, cache);
        const pair = `webgpu against wasm, ${cache}${precise ? ', both precise' : ''}`;
        print([{ pair, ...compare(reference, found, ids) }], json);
      }
    }
    return;
  }
  const rows: Comparison[] = [];
  for (const cache of kv.split(',').filter(Boolean)) {
    const precise = await run({ ...wasm, precise: true }, positions, cache);
    const js = await run({ device: 'js' }, cache === 'f16' ? JS_POSITIONS.f16 : JS_POSITIONS.packed, cache);
    rows.push(
      { pair: `wasm against wasm, precise, ${cache}`, ...compare(precise, await run(wasm, positions, cache), ids) },
      { pair: `wasm, precise against js, ${cache}`, ...compare(js, precise, ids) },
    );
  }
  const perplexities = await perplexity(model, all, Number(threads), peers, positions);
  if (json) console.log(JSON.stringify({ rows, perplexities }, null, 1));
  else {
    print(rows, false);
    for (const { name, value, ratio } of perplexities) {
      const against = `${(100 * (ratio - 1)).toFixed(3)} % from ${perplexities[0].name}`;
      console.log(`${name}: perplexity ${value.toFixed(4)}, ${against}, ${PERPLEXITY_ROWS} rows of ${positions}`);
    }
  }
}

function print(rows: readonly Comparison[], json: boolean): void {
  if (json) console.log(JSON.stringify(rows, null, 1));
  else
    for (const { pair, positions, kld, top1, perplexity } of rows) {
      const same = `top-1 ${(100 * top1).toFixed(2)} %`;
      console.log(
        `${pair}: ${positions} positions, divergence ${kld.toExponential(2)}, ${same}, perplexity ${perplexity}`,
      );
    }
}

/** Perplexity of the second halves of the first rows, with f16 caches. */
async function perplexity(model: string, ids: readonly number[], threads: number, peers: boolean, positions: number) {
  const found = peers ? ['off', 'on'].map(flash => runLlama(model, ids, flash, threads, positions)) : [];
  for (const precise of [true, false]) {
    const file = await openModelFile(model);
    const cache = { plan: createPlan(parseSpec('f16'), file.config), context: positions };
    const engine = await loadEngine(file, cache, { device: 'wasm', threads, precise });
    const [row] = await measureDivergence(engine, ids, { plans: [], context: positions, rows: PERPLEXITY_ROWS });
    found.push({ name: precise ? 'wasm, precise' : 'wasm', value: row.perplexity });
    await engine.dispose();
  }
  return found.map(({ name, value }) => ({ name, value, ratio: value / found[0].value }));
}

/** Runs llama.cpp in a separate process. */
function runLlama(model: string, ids: readonly number[], flash: string, threads: number, positions: number) {
  const script = fileURLToPath(new URL('./llama-perplexity.js', import.meta.url));
  const rows = Array.from({ length: PERPLEXITY_ROWS }, (_, i) => ids.slice(i * positions, (i + 1) * positions));
  const { stdout, stderr, status } = spawnSync(
    process.execPath,
    [script, model, flash, String(positions / 2), String(threads)],
    { encoding: 'utf8', input: JSON.stringify(rows) },
  );
  if (status !== 0) throw new InputError(`llama.cpp failed: ${stderr.slice(-400)}`);
  return { name: `llama.cpp, flash ${flash}`, value: JSON.parse(stdout).perplexity as number };
}

async function readModelFile(model: string) {
  const file = await openModelFile(model);
  await file.gguf.close();
  return file;
}

/** Log-probabilities at every position. */
async function predict(
  model: string,
  ids: readonly number[],
  options: EngineOptions,
  cache: string,
): Promise<Float32Array[]> {
  const file = await openModelFile(model);
  const { profile } = await resolveProfile(file, [parsePlanSpec(cache)]);
  const plan = choosePlan(parsePlanSpec(cache), planShape(file), profile);
  const context = ids.length + 1;
  const engine: Engine = await loadEngine(file, { plan, context }, options);
  const sequence = engine.openSequence(plan, context);
  const rows: Float32Array[] = [];
  await step(engine, [{ sequence, tokens: ids, logits: 'all' }], {
    onLogits: (_chunk, _row, logits) => {
      rows.push(logSoftmax(logits));
    },
  });
  await engine.dispose();
  return rows;
}

const argmax = (row: Float32Array) => row.reduce((best, x, i) => (x > row[best] ? i : best), 0);

function compare(reference: Float32Array[], other: Float32Array[], ids: readonly number[]) {
  let [kld, same, nll] = [0, 0, 0];
  reference.forEach((row, t) => {
    for (let i = 0; i < row.length; i++) kld += Math.exp(row[i]) * (row[i] - other[t][i]);
    if (argmax(row) === argmax(other[t])) same++;
    if (t + 1 < ids.length) nll -= other[t][ids[t + 1]];
  });
  const n = reference.length;
  return { positions: n, kld: kld / n, top1: same / n, perplexity: Math.exp(nll / n).toFixed(3) };
}
