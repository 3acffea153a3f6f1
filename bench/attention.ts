/**
 * What does attention on packed pages cost per codec? Nanoseconds per cached token, row and KV head at one depth, over all
 * layers: for one query row, as in decoding, or for `--rows` at once, as in prompts. Validates first against the js device
 * on the same data.
 *
 * Codecs take turns and the best of many rounds counts, so that other load on the machine affects all equally.
 */

import { createSequence } from '../src/cache/create-sequence.ts';
import type { Sequence } from '../src/cache/sequence.ts';
import { formatTable } from '../src/cli/table.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../src/codec/parts/rope.ts';
import { norm } from '../src/codec/parts/vector.ts';
import type { Device, Tensor } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { createWasmDevice } from '../src/kernel/wasm/device.ts';
import { InputError } from '../src/util/errors.ts';
import { benchPlan } from './fill-context.ts';

/** The shape of SmolLM2-135M. */
const SHAPE = { layers: 30, heads: 9, kvHeads: 3, headDim: 64, pageTokens: 128 };
const ROUNDS = 25;
/** Relative error of integer attention against float attention. */
const TOLERANCE = 0.04;

interface Options {
  kv: string;
  depths: string;
  threads: string;
  rows?: string;
  json: boolean;
}

interface Cache {
  spec: string;
  sequence: Sequence;
  /** Rows that attend at once. */
  rows: number;
  q: Tensor;
  out: Tensor;
}

export async function benchAttention(options: Options): Promise<void> {
  const depth = Math.max(...options.depths.split(',').map(Number));
  const count = Number(options.rows ?? 1);
  const rows = options.kv.split(',').map(spec => ({ spec }) as { spec: string } & Record<string, number | string>);
  const counts = [...new Set([1, Number(options.threads)])];
  for (const threads of counts) {
    const device = await createWasmDevice({ ...SHAPE, threads });
    const caches: Cache[] = [];
    for (const { spec } of rows) {
      await validate(device, spec, count);
      caches.push(await fill(device, spec, depth, SHAPE.layers, count));
    }
    const best = caches.map(() => Number.POSITIVE_INFINITY);
    for (let round = 0; round < ROUNDS; round++) {
      caches.forEach((cache, i) => {
        const start = performance.now();
        for (let layer = 0; layer < SHAPE.layers; layer++) attend(device, cache, layer);
        best[i] = Math.min(best[i], performance.now() - start);
      });
    }
    rows.forEach((row, i) => {
      row[threads] = (best[i] * 1e6) / (depth * count * SHAPE.layers * SHAPE.kvHeads);
    });
    await device.dispose();
  }
  if (options.json) return console.log(JSON.stringify(rows, null, 1));
  const header = ['', ...counts.flatMap(n => [`ns, ${n} thread${n > 1 ? 's' : ''}`, `x ${rows[0].spec}`])];
  const lines = rows.map(row => [
    row.spec,
    ...counts.flatMap(n => [Number(row[n]).toFixed(1), (Number(rows[0][n]) / Number(row[n])).toFixed(2)]),
  ]);
  console.log(
    `Attention of ${count} rows at ${depth} tokens: nanoseconds per token, row and KV head of ${SHAPE.heads / SHAPE.kvHeads} queries.`,
  );
  console.log(formatTable(header, lines));
}

/** A cache of `depth` tokens: one page of random data, repeated. */
async function fill(device: Device, spec: string, depth: number, layers: number, rows: number): Promise<Cache> {
  const { kvHeads, headDim, heads, pageTokens } = SHAPE;
  const plan = benchPlan(spec, { ...SHAPE, layers, ropeFrequencies: createRopeFrequencies(SHAPE.headDim) });
  const { sink, recent } = plan.window;
  const sequence = createSequence({
    device,
    shape: { headDim, kvHeads, pageTokens, sinks: sink },
    leaf: plan.leaf,
    recent,
    context: depth + pageTokens + rows,
  });
  const random = createRandom(7);
  const [k, v] = [kvHeads, kvHeads].map(n => device.createTensor(pageTokens, n * headDim));
  const [q, out] = [heads, heads].map(n => device.createTensor(layers - 1 + rows, n * headDim));
  for (const tensor of [k, v, q]) device.writeRows(tensor, 0, normals(random, tensor.rows * tensor.cols));
  sequence.plan(pageTokens);
  await device.ensureMemory?.([sequence.view]);
  const page = { view: sequence.view, row: 0, count: pageTokens, position: 0, sealedPages: 0 };
  for (let layer = 0; layer < layers; layer++) device.append(layer, k, v, [page]);
  sequence.commit(pageTokens);
  sequence.plan(depth - pageTokens + 1);
  await device.ensureMemory?.([sequence.view]);
  const { leaves } = sequence.view;
  for (let layer = 0; layer < layers; layer++) device.seal(layer, [{ view: sequence.view, page: 0 }]);
  const sealed = await device.readBlock(leaves[0]);
  for (const leaf of leaves.slice(1)) device.writeBlock(leaf, sealed);
  sequence.commit(depth - pageTokens);
  // Rows attend to themselves, too: the tail needs blocks for them.
  sequence.plan(rows);
  await device.ensureMemory?.([sequence.view]);
  return { spec, sequence, rows, q, out };
}

function attend(device: Device, { sequence, rows, q, out }: Cache, layer: number): void {
  const { view, length } = sequence;
  const run = { view, row: layer, count: rows, position: length, sealedPages: view.leaves.length };
  device.attend(layer, q, out, [run], { scale: 1 / Math.sqrt(SHAPE.headDim) });
}

async function validate(device: Device, spec: string, rows: number): Promise<void> {
  const rowOf = async (d: Device) => {
    const cache = await fill(d, spec, 5 * SHAPE.pageTokens, 1, rows);
    attend(d, cache, 0);
    const row = await d.readRows(cache.out, rows - 1);
    cache.sequence.dispose();
    return row;
  };
  const [fast, exact] = [await rowOf(device), await rowOf(createJsDevice())];
  const relativeError = norm(fast.map((x, i) => x - exact[i])) / norm(exact);
  if (!(relativeError < TOLERANCE))
    throw new InputError(`${spec}: the relative error of wasm against js is ${relativeError.toFixed(3)}.`);
}
