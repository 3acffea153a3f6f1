/**
 * How fast is decode attention on packed pages, by codec, batch and context? GPU time of the query transform, pages, f16
 * tokens and combination together, and of each alone. Validates every codec against js first.
 */

import { createSequence } from '../src/cache/create-sequence.ts';
import { leafLayout } from '../src/cache/leaf.ts';
import { formatTable } from '../src/cli/table.ts';
import { createCodec, type KvCodec, learn } from '../src/codec/kv.ts';
import { gaussianSamples } from '../src/codec/learned.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../src/codec/parts/rope.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { measureCopy } from '../src/kernel/webgpu/bandwidth.ts';
import { createWebGpuDevice, type WebGpuDevice } from '../src/kernel/webgpu/device.ts';
import type { GpuBlock } from '../src/kernel/webgpu/pool.ts';
import { InputError } from '../src/util/errors.ts';
import { formatBytes } from '../src/util/units.ts';
import { relativeError, runAttention } from '../test/support/attention.ts';
import { slowness } from './webgpu-clock.ts';

interface Options {
  kv: string;
  /** Batch x context: 1x131072,64x8192. */
  work: string;
  /** Query heads / KV heads / dims. */
  heads: string;
  /** Pages per split, a list. 0 for all pages in one split. */
  split: string;
  subgroups: boolean;
  json: boolean;
}

interface Row {
  kv: string;
  work: string;
  split: number;
  us: number;
  /** Bytes of pages read. */
  bytes: number;
  /** Microseconds of each kernel alone. */
  steps: Record<string, number>;
  /** Slowdown against the fastest clock seen. */
  slow: number;
}

const TRIES = 20;
/** An idle GPU lowers its clock: warm-up rounds of this many milliseconds run until they no longer get faster. */
const WARM_UP_MS = 200;
const ROUNDS = { min: 2, max: 15 };
/** Measurements at a lower clock than this are repeated, up to this often. */
const MAX_SLOWDOWN = 1.03;
const MAX_REPEATS = 4;
const TOLERANCE = 3e-2;
/** Vectors to learn from: speed does not depend on their number. */
const TRAINING_VECTORS = 256;
const STEPS = ['transform query', 'page-relative queries', 'attend pages', 'attend f16', 'combine splits'];

export async function benchWebGpuAttention(options: Options): Promise<void> {
  const [heads, kvHeads, headDim] = options.heads.split('/').map(Number);
  const shape = { headDim, heads, kvHeads, pageTokens: 128 };
  const copy = await measureCopy();
  console.error(`copies ${formatBytes(copy)}/s`);
  const rows: Row[] = [];
  let name = '';
  for (const kv of options.kv.split(',')) {
    const made = create(kv, shape);
    for (const split of options.split.split(',').map(Number)) {
      const device = await createWebGpuDevice({
        ...shape,
        pagesPerSplit: split || 1 << 20,
        subgroups: options.subgroups,
      });
      name = device.info.name;
      try {
        const leaf = await validate(device, shape, made);
        for (const work of options.work.split(',')) {
          const row = await measure(device, made, work, split, shape, leaf);
          console.error(progress(row));
          rows.push(row);
        }
      } catch (error) {
        console.error(`bench: ${kv}: ${(error as Error).message}`);
      }
      await device.dispose();
    }
  }
  if (options.json) console.log(JSON.stringify({ adapter: name, copy, rows }, null, 1));
  else console.log(render(name, copy, rows));
}

type Shape = { headDim: number; heads: number; kvHeads: number; pageTokens: number };

function create(kv: string, { headDim, kvHeads, pageTokens }: Shape): KvCodec {
  const shape = { headDim, kvHeads, pageTokens, ropeFrequencies: createRopeFrequencies(headDim) };
  const samples = gaussianSamples(shape, TRAINING_VECTORS);
  return createCodec(kv, shape, learn(kv, shape, { key: samples, value: samples }));
}

/** Returns a sealed page. */
async function validate(device: WebGpuDevice, shape: Shape, codec: KvCodec): Promise<Uint8Array> {
  const chunks = [300, 1];
  const setting = { ...shape, spec: 'f16', codec };
  const js = await runAttention(createJsDevice(), setting, chunks, { lastRows: 1 });
  const fast = await runAttention(device, setting, chunks, { lastRows: 1, leaves: js.leaves });
  const prompt = await runAttention(device, setting, chunks, { lastRows: 1, leaves: js.leaves, prefill: true });
  const [decoded, prompted] = [fast, prompt].map(({ outputs }) =>
    Math.max(...js.outputs.map((output, i) => relativeError(outputs[i], output))),
  );
  const worst = Math.max(decoded, prompted);
  console.error(
    `${codec.spec} is ${decoded.toExponential(1)} from js, ${prompted.toExponential(1)} for rows of prompts`,
  );
  if (!(worst < TOLERANCE)) throw new InputError(`${codec.spec} is ${worst} from js: nothing to time.`);
  return js.leaves[0];
}

async function measure(
  device: WebGpuDevice,
  made: KvCodec,
  work: string,
  split: number,
  shape: Shape,
  leaf: Uint8Array,
): Promise<Row> {
  const [batch, context] = work.split('x').map(Number);
  const { heads, kvHeads, headDim, pageTokens } = shape;
  const random = createRandom(headDim);
  const layout = leafLayout([made]);
  const open = () => {
    const cache = { headDim, kvHeads, pageTokens, sinks: made.window.sink };
    const { recent } = made.window;
    const sequence = createSequence({ device, shape: cache, leaf: layout, recent, context: context + 1 });
    sequence.plan(context + 1);
    sequence.commit(context);
    return sequence;
  };
  const sequences = Array.from({ length: batch }, open);
  const runs = sequences.map((sequence, row) => {
    const [{ position, sealedPages }] = sequence.plan(1);
    return { view: sequence.view, row, count: 1, position, sealedPages };
  });
  await device.ensureMemory(sequences.map(({ view }) => view));
  fill(
    device,
    sequences.flatMap(({ view }) => view.leaves as GpuBlock[]),
    leaf,
  );
  const [q, k, v, out] = [heads, kvHeads, kvHeads, heads].map(n => device.createTensor(batch, n * headDim));
  for (const tensor of [q, k, v]) device.writeRows(tensor, 0, normals(random, tensor.rows * tensor.cols));
  device.append(0, k, v, runs);
  const attend = () => device.attend(0, q, out, runs, { scale: 1 / Math.sqrt(headDim) });
  attend();
  await device.readRows(out, 0);
  const bestTime = async () => {
    let best = Number.POSITIVE_INFINITY;
    for (let i = 0; i < TRIES; i++) best = Math.min(best, await device.gpu.time(attend));
    return best / 1000;
  };
  const { gpu, info } = device;
  let us = Number.POSITIVE_INFINITY;
  let slow = 1;
  for (let time = 0; time < MAX_REPEATS; time++) {
    await warmUp(() => gpu.time(attend));
    us = Math.min(us, await bestTime());
    slow = info.software ? 1 : await slowness(gpu);
    if (slow <= MAX_SLOWDOWN) break;
  }
  const steps: Record<string, number> = {};
  const run = gpu.run.bind(gpu);
  for (const step of STEPS) {
    gpu.run = (kernel, ...rest) => {
      if (kernel.name.startsWith(step)) run(kernel, ...rest);
    };
    steps[step] = await bestTime();
  }
  gpu.run = run;
  for (const sequence of sequences) sequence.dispose();
  for (const tensor of [q, k, v, out]) device.free(tensor);
  return { kv: made.spec, work, split, us, bytes: batch * runs[0].sealedPages * layout.bytes, steps, slow };
}

async function warmUp(run: () => Promise<number>): Promise<void> {
  let fastest = Number.POSITIVE_INFINITY;
  for (let round = 0, idle = 0; round < ROUNDS.max && idle < ROUNDS.min; round++) {
    let best = Number.POSITIVE_INFINITY;
    for (const start = performance.now(); performance.now() - start < WARM_UP_MS; ) best = Math.min(best, await run());
    idle = best < 0.98 * fastest ? 0 : idle + 1;
    fastest = Math.min(fastest, best);
  }
}

/** Copies one page to all leaves. */
function fill({ gpu }: WebGpuDevice, leaves: readonly GpuBlock[], page: Uint8Array): void {
  const [{ pool }] = leaves;
  const from = gpu.createBuffer(page.length, 'a page');
  gpu.upload(from, 0, page.slice());
  for (const { slot } of leaves) gpu.copy(from, 0, pool.buffers[0], slot * pool.strides[0], page.length);
  gpu.submit();
  gpu.destroy(from);
}

const progress = ({ kv, work, split, us, bytes, steps, slow }: Row) =>
  `${kv} ${work} split ${split}: ${us.toFixed(1)} us, ${(bytes / us / 1e3).toFixed(0)} GB/s, ` +
  Object.entries(steps)
    .map(([name, time]) => `${name} ${time.toFixed(1)}`)
    .join(', ') +
  (slow > MAX_SLOWDOWN ? ` (clock at ${(100 / slow).toFixed(0)} % of its best)` : '');

function render(name: string, copy: number, rows: readonly Row[]): string {
  const lines = rows.map(({ kv, work, split, us, bytes }) => {
    const exact = rows.find(row => row.kv === 'f16' && row.work === work);
    const rate = bytes / (us / 1e6);
    return [
      work,
      kv,
      split === 0 ? 'none' : String(split),
      us.toFixed(1),
      (rate / 1e9).toFixed(1),
      `${((100 * rate) / copy).toFixed(1)} %`,
      exact ? `${(exact.us / us).toFixed(2)}x` : '-',
    ];
  });
  return [
    `Decode attention on ${name}, which copies ${formatBytes(copy)}/s. Best of ${TRIES}, one layer.`,
    formatTable(['batch x context', 'kv', 'split', 'us', 'GB/s of pages', 'of copy', 'vs f16'], lines),
  ].join('\n');
}
