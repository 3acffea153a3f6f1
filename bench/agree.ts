/**
 * Do the devices agree? Teacher-forced predictions on a real text with an f16 cache: the wasm device as generation uses
 * it (int8 activations) against its precise mode over all positions, and the precise mode against js, the definition,
 * over the first few, because js is slow.
 */
import { readFile } from 'node:fs/promises';
import { type Engine, type EngineOptions, loadEngine, openModelFile } from '../src/engine/engine.ts';
import { step } from '../src/engine/step.ts';
import { planOf } from '../src/plan/plan.ts';

interface Options {
  model: string;
  text: string;
  threads: string;
  json: boolean;
}

const POSITIONS = 2048;
const JS_POSITIONS = 96;

export async function benchAgree({ model, text, threads, json }: Options): Promise<void> {
  const { tokenizer } = await openAndClose(model);
  const ids = tokenizer.encode(await readFile(text, 'utf8')).slice(0, POSITIONS);
  const run = (options: EngineOptions, count: number) => predict(model, ids.slice(0, count), options);
  const wasm = { device: 'wasm', threads: Number(threads) } as const;
  const precise = await run({ ...wasm, precise: true }, POSITIONS);
  const rows = [
    { pair: 'wasm against wasm, precise', ...compare(precise, await run(wasm, POSITIONS), ids) },
    { pair: 'wasm, precise against js', ...compare(await run({ device: 'js' }, JS_POSITIONS), precise, ids) },
  ];
  if (json) console.log(JSON.stringify(rows, null, 1));
  else
    for (const { pair, positions, kld, top1, perplexity } of rows) {
      const same = `top-1 ${(100 * top1).toFixed(2)} %`;
      console.log(
        `${pair}: ${positions} positions, divergence ${kld.toExponential(2)}, ${same}, perplexity ${perplexity}`,
      );
    }
}

async function openAndClose(model: string) {
  const file = await openModelFile(model);
  await file.gguf.close();
  return file;
}

/** Log-probabilities at every position. */
async function predict(model: string, ids: readonly number[], options: EngineOptions): Promise<Float32Array[]> {
  const file = await openModelFile(model);
  const plan = planOf('f16', file.config);
  const engine: Engine = await loadEngine(file, { plan, context: POSITIONS + 1 }, options);
  const sequence = engine.openSequence(plan, POSITIONS + 1);
  const rows: Float32Array[] = [];
  await step(engine, [{ sequence, tokens: ids, logits: 'all' }], {
    onLogits: (_chunk, _row, logits) => {
      rows.push(logSoftmax(logits));
    },
  });
  await engine.dispose();
  return rows;
}

function logSoftmax(logits: Float32Array): Float32Array {
  let most = Number.NEGATIVE_INFINITY;
  for (const x of logits) most = Math.max(most, x);
  let sum = 0;
  for (const x of logits) sum += Math.exp(x - most);
  return logits.map(x => x - most - Math.log(sum));
}

const largest = (row: Float32Array) => row.reduce((best, x, i) => (x > row[best] ? i : best), 0);

function compare(reference: Float32Array[], other: Float32Array[], ids: readonly number[]) {
  let [kld, same, nll] = [0, 0, 0];
  reference.forEach((row, t) => {
    for (let i = 0; i < row.length; i++) kld += Math.exp(row[i]) * (row[i] - other[t][i]);
    if (largest(row) === largest(other[t])) same++;
    if (t + 1 < ids.length) nll -= other[t][ids[t + 1]];
  });
  const n = reference.length;
  return { positions: n, kld: kld / n, top1: same / n, perplexity: Math.exp(nll / n).toFixed(3) };
}
