/**
 * What does attention on pages cost, by codec? Nanoseconds a token of the cache and KV head at one depth, a single query
 * row over all layers, as decoding has it. Validates first: the same data through the js device.
 *
 * Codecs take turns, and the best of many rounds counts, so that whatever else the machine does falls on all alike.
 */
import { createSequence, type Sequence } from '../src/cache/sequence.ts';
import { table } from '../src/cli/table.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { norm } from '../src/codec/parts/vector.ts';
import { InputError } from '../src/errors.ts';
import { turnOf } from '../src/eval/vectors.ts';
import type { Device, Tensor } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { createWasmDevice } from '../src/kernel/wasm/device.ts';
import { benchPlan } from './fill.ts';

/** SmolLM2-135M's. */
const SHAPE = { layers: 30, heads: 9, kvHeads: 3, headDim: 64, pageTokens: 128 };
const ROUNDS = 25;
/** Of the length of the outputs; integers against floats. */
const TOLERANCE = 0.04;

interface Options {
  kv: string;
  depths: string;
  threads: string;
  json: boolean;
}

interface Cache {
  spec: string;
  sequence: Sequence;
  q: Tensor;
  out: Tensor;
}

export async function benchAttention(options: Options): Promise<void> {
  const depth = Math.max(...options.depths.split(',').map(Number));
  const rows = options.kv.split(',').map(spec => ({ spec }) as { spec: string } & Record<string, number | string>);
  const counts = [...new Set([1, Number(options.threads)])];
  for (const threads of counts) {
    const device = await createWasmDevice({ ...SHAPE, threads });
    const caches: Cache[] = [];
    for (const { spec } of rows) {
      await validate(device, spec);
      caches.push(await fill(device, spec, depth, SHAPE.layers));
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
      row[threads] = (best[i] * 1e6) / (depth * SHAPE.layers * SHAPE.kvHeads);
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
    `Attention at ${depth} tokens: nanoseconds a token and KV head of ${SHAPE.heads / SHAPE.kvHeads} queries.`,
  );
  console.log(table(header, lines));
}

/** A cache of `depth` tokens: one page of random data, over and over. */
async function fill(device: Device, spec: string, depth: number, layers: number): Promise<Cache> {
  const { kvHeads, headDim, heads, pageTokens } = SHAPE;
  const plan = benchPlan(spec, { ...SHAPE, layers, turn: turnOf(SHAPE.headDim) });
  const { sink, recent } = plan.window;
  const sequence = createSequence({
    device,
    shape: { headDim, kvHeads, pageTokens, sinks: sink },
    leaf: plan.leaf,
    recent,
    context: depth + pageTokens,
  });
  const random = createRandom(7);
  const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.tensor(pageTokens, n * headDim));
  for (const tensor of [k, v, q]) device.write(tensor, 0, normals(random, tensor.rows * tensor.cols));
  sequence.plan(pageTokens);
  await device.ready?.([sequence.view]);
  const page = { view: sequence.view, row: 0, count: pageTokens, position: 0, sealed: 0 };
  for (let layer = 0; layer < layers; layer++) device.append(layer, k, v, [page]);
  sequence.commit(pageTokens);
  sequence.plan(depth - pageTokens + 1);
  await device.ready?.([sequence.view]);
  const { leaves } = sequence.view;
  for (let layer = 0; layer < layers; layer++) device.seal(sequence.view, layer, 0, leaves[0]);
  const sealed = await device.readBlock(leaves[0]);
  for (const leaf of leaves.slice(1)) device.writeBlock(leaf, sealed);
  sequence.commit(depth - pageTokens);
  return { spec, sequence, q, out };
}

function attend(device: Device, { sequence, q, out }: Cache, layer: number): void {
  const { view, length } = sequence;
  const run = { view, row: layer, count: 1, position: length, sealed: view.leaves.length };
  device.attend(layer, q, out, [run], 1 / Math.sqrt(SHAPE.headDim));
}

async function validate(device: Device, spec: string): Promise<void> {
  const rowOf = async (d: Device) => {
    const cache = await fill(d, spec, 5 * SHAPE.pageTokens, 1);
    attend(d, cache, 0);
    const row = await d.read(cache.out, 0);
    cache.sequence.dispose();
    return row;
  };
  const [fast, exact] = [await rowOf(device), await rowOf(createJsDevice())];
  const far = norm(fast.map((x, i) => x - exact[i])) / norm(exact);
  if (!(far < TOLERANCE)) throw new InputError(`${spec}: the wasm device is ${far.toFixed(3)} away from js.`);
}
