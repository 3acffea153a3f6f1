/**
 * How fast is decode attention on packed pages, by codec, batch and context? On the GPU, by its own clock: prepare, pages,
 * tails and merge together. Validates every codec against js first.
 */
import { createSequence } from '../src/cache/sequence.ts';
import { table } from '../src/cli/table.ts';
import { InputError } from '../src/errors.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { measureCopy } from '../src/kernel/webgpu/bandwidth.ts';
import { createWebGpuDevice, type WebGpuDevice } from '../src/kernel/webgpu/device.ts';
import { planOf } from '../src/plan/plan.ts';
import { formatBytes } from '../src/units.ts';
import { far, runAttention } from '../test/attention.ts';

interface Options {
  kv: string;
  /** Batch x context: 1x131072,64x8192. */
  work: string;
  /** Query heads / KV heads / dims. */
  heads: string;
  json: boolean;
}

interface Row {
  kv: string;
  work: string;
  us: number;
  /** Of the pages that are read. */
  bytes: number;
}

const TRIES = 20;
const TOLERANCE = 1e-2;

export async function benchWebGpuAttention(options: Options): Promise<void> {
  const [heads, kvHeads, headDim] = options.heads.split('/').map(Number);
  const shape = { headDim, heads, kvHeads, pageTokens: 128 };
  const copy = await measureCopy();
  const rows: Row[] = [];
  let name = '';
  for (const kv of options.kv.split(',')) {
    const device = await createWebGpuDevice(shape);
    name = device.info.name;
    await validate(device, { ...shape, spec: kv });
    for (const work of options.work.split(',')) {
      const row = await measure(device, kv, work, shape).catch(error =>
        console.error(`bench: ${kv}, ${work}: ${error.message}`),
      );
      if (row) rows.push(row);
    }
    await device.dispose();
  }
  if (options.json) console.log(JSON.stringify({ adapter: name, copy, rows }, null, 1));
  else console.log(render(name, copy, rows));
}

async function validate(device: WebGpuDevice, setting: Parameters<typeof runAttention>[1]): Promise<void> {
  const chunks = [300, 1];
  const js = await runAttention(createJsDevice(), setting, chunks, { most: 1 });
  const fast = await runAttention(device, setting, chunks, { most: 1, leaves: js.leaves });
  const worst = Math.max(...js.outputs.map((output, i) => far(fast.outputs[i], output)));
  if (!(worst < TOLERANCE)) throw new InputError(`${setting.spec} is ${worst} from js: nothing to time.`);
}

type Shape = { headDim: number; heads: number; kvHeads: number; pageTokens: number };

async function measure(device: WebGpuDevice, kv: string, work: string, shape: Shape): Promise<Row> {
  const [batch, context] = work.split('x').map(Number);
  const { heads, kvHeads, headDim, pageTokens } = shape;
  const plan = planOf(kv, { ...shape, layers: 1 });
  const open = () => {
    const cache = { headDim, kvHeads, pageTokens, sinks: plan.window.sink };
    const { recent } = plan.window;
    const sequence = createSequence({ device, shape: cache, leaf: plan.leaf, recent, context: context + 1 });
    sequence.plan(context + 1);
    sequence.commit(context);
    return sequence;
  };
  const sequences = Array.from({ length: batch }, open);
  const [q, k, v, out] = [heads, kvHeads, kvHeads, heads].map(n => device.tensor(batch, n * headDim));
  for (const tensor of [q, k, v])
    device.write(tensor, 0, Float32Array.from({ length: tensor.rows * tensor.cols }, Math.random));
  const runs = sequences.map((sequence, row) => {
    const [{ position, sealed }] = sequence.plan(1);
    return { view: sequence.view, row, count: 1, position, sealed };
  });
  device.append(0, k, v, runs);
  device.attend(0, q, out, runs, 1 / Math.sqrt(headDim));
  await device.read(out, 0);
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < TRIES; i++) {
    best = Math.min(best, await device.gpu.time(() => device.attend(0, q, out, runs, 1 / Math.sqrt(headDim))));
  }
  for (const sequence of sequences) sequence.dispose();
  for (const tensor of [q, k, v, out]) device.free(tensor);
  return { kv, work, us: best / 1000, bytes: batch * runs[0].sealed * plan.leaf.bytes };
}

function render(name: string, copy: number, rows: readonly Row[]): string {
  const lines = rows.map(({ kv, work, us, bytes }) => {
    const exact = rows.find(row => row.kv === 'f16' && row.work === work);
    const rate = bytes / (us / 1e6);
    return [
      work,
      kv,
      us.toFixed(1),
      (rate / 1e9).toFixed(1),
      `${((100 * rate) / copy).toFixed(1)} %`,
      exact ? `${(exact.us / us).toFixed(2)}x` : '-',
    ];
  });
  return [
    `Decode attention on ${name}, which copies ${formatBytes(copy)}/s. Best of ${TRIES}, one layer.`,
    table(['batch x context', 'kv', 'us', 'GB/s of pages', 'of copying', 'f16 / it'], lines),
  ].join('\n');
}
