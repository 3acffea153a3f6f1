/** The webgpu device against the js device, on fresh random data: every weight type, every codec, odd sizes, edges. */
import { afterAll, expect, it } from 'vitest';
import { affineFormat } from '../src/codec/affine.ts';
import { mapped } from '../src/codec/domain.ts';
import { pageCodec } from '../src/codec/page-codec.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { zoo } from '../src/codec/zoo.ts';
import { createSampler } from '../src/engine/sample.ts';
import type { Device, Tensor } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { createWebGpuDevice, type WebGpuOptions } from '../src/kernel/webgpu/device.ts';
import { dequantize } from '../src/kernel/weights/dequantize.ts';
import { weightTypes } from '../src/kernel/weights/types.ts';
import { far, farOf, farScores, runAttention, runSmallOperations, type Setting, VARIANTS } from './attention.ts';
import { randomWeights } from './quantize.ts';
import { seeded } from './random.ts';
import { describeGpu } from './webgpu.ts';

/** Of the length of the vectors involved. */
const INT8_MATMUL = 0.012;
/** K types have their products of scales rounded to f16, and what a minimum adds much of what a scale does. */
const PRECISE_MATMUL = 7e-4;
const FLOAT = 2e-5;
/**
 * Scores, of |q| |k|, and outputs, of the length of a value: where pages are read as floats, and where by int8 queries and
 * weights of 8 bits.
 */
const FLOAT_ATTENTION = 1e-3;
const INT8_ATTENTION = 1e-2;
/** Share of sealed codes that may fall on the other side of a tie. */
const TIES = 1e-4;

/** Small, so that SwiftShader is done with it. */
const SHAPE = { headDim: 32, heads: 6, kvHeads: 2, pageTokens: 32 };

const open = new Map<string, Promise<Device>>();
function webgpu(options: Partial<WebGpuOptions> = {}): Promise<Device> {
  const key = JSON.stringify(options);
  const device = open.get(key) ?? createWebGpuDevice({ ...SHAPE, ...options });
  open.set(key, device);
  return device;
}
afterAll(async () => {
  for (const device of open.values()) await (await device).dispose();
});

describeGpu('matrices', () => {
  it.each(weightTypes.flatMap(type => [[type, false] as const, [type, true] as const]))(
    '%s, precise: %s',
    async (type, precise) => {
      // One type in the tiles that a GPU takes, which are slow to compile here.
      const device = await webgpu({ precise, unroll: type === 'Q4_1' && !precise ? 4 : undefined });
      const [rows, cols, batch] = [37, 256, 20];
      const bytes = randomWeights(type, rows * cols, 0.1, seeded(3));
      const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
      const exact = new Float32Array(rows * cols);
      dequantize(type, bytes, exact);
      const x = normals(createRandom(5), batch * cols);
      const bias = normals(createRandom(6), rows);
      const biasTensor = device.tensor(1, rows);
      device.write(biasTensor, 0, bias);
      /** Rows `first` on, by themselves. */
      const product = async (first: number, count: number) => {
        const [input, out] = [device.tensor(count, cols), device.tensor(count, rows)];
        device.write(input, 0, x.slice(first * cols, (first + count) * cols));
        device.project(input, count, [{ weights, out, bias: biasTensor }]);
        device.project(input, count, [{ weights, out, add: true }]);
        return Promise.all(Array.from({ length: count }, (_, r) => device.read(out, r)));
      };
      const all = await product(0, batch);
      const tolerance = !/^[QI]/.test(type) ? FLOAT : precise ? PRECISE_MATMUL : INT8_MATMUL;
      all.forEach((row, r) => {
        const expected = Float32Array.from({ length: rows }, (_, o) => {
          let sum = 0;
          for (let i = 0; i < cols; i++) sum += x[r * cols + i] * exact[o * cols + i];
          return 2 * sum + bias[o];
        });
        expect(far(row, expected)).toBeLessThan(tolerance);
      });
      // A row gives the very same bits in any company: tiles, a few together, alone.
      expect(await product(3, 6)).toEqual(all.slice(3, 9));
      expect(await product(7, 1)).toEqual(all.slice(7, 8));
    },
  );

  it('past the largest binding go on in further buffers', async () => {
    const [rows, cols] = [40, 512];
    const bytes = randomWeights('Q8_0', rows * cols, 0.1, seeded(8));
    const results = await Promise.all(
      [{}, { limits: { binding: 32 * cols } }].map(async options => {
        const device = await webgpu(options);
        const weights = await device.loadWeights('Q8_0', rows, cols, async into => into.set(bytes));
        const [input, out] = [device.tensor(3, cols), device.tensor(3, rows)];
        device.embed(weights, [39, 0, 17], input);
        device.project(input, 3, [{ weights, out }]);
        return Promise.all([device.read(input, 0), device.read(input, 2), device.read(out, 1)]);
      }),
    );
    expect(results[1]).toEqual(results[0]);
    const exact = new Float32Array(rows * cols);
    dequantize('Q8_0', bytes, exact);
    expect(results[0][0]).toEqual(exact.slice(39 * cols));
    expect(results[0][1]).toEqual(exact.slice(17 * cols, 18 * cols));
  });
});

describeGpu('operations that go together', () => {
  it.each([1, 3, 20])('have the bits that each has alone: %i rows', async rows => {
    const device = await webgpu();
    const [cols, outs] = [128, [96, 40, 64]];
    const matrices = await Promise.all(
      outs.map((n, i) => {
        const bytes = randomWeights('Q4_0', n * cols, 0.1, seeded(i));
        return device.loadWeights('Q4_0', n, cols, async into => into.set(bytes));
      }),
    );
    const tensor = (n: number) => device.tensor(rows, n);
    const readAll = (x: Tensor) => Promise.all(Array.from({ length: rows }, (_, r) => device.read(x, r)));
    const x = tensor(cols);
    device.write(x, 0, normals(createRandom(5), rows * cols));
    const weight = device.tensor(1, cols);
    device.write(weight, 0, normals(createRandom(8), cols));
    const angles = device.tensor(rows, 32);
    device.write(angles, 0, normals(createRandom(6), rows * 32));
    const run = async (together: boolean) => {
      const [a, b, c, g, u, y, h] = [96, 40, 64, 96, 96, 40, cols].map(tensor);
      const norm = async (eps: number) => {
        device.norm(x, rows, weight, eps, h);
        if (!together) await device.read(h, 0);
      };
      const products = [a, b, c].map((out, i) => ({ weights: matrices[i], out }));
      const gates = [g, u].map(out => ({ weights: matrices[0], out }));
      await norm(1e-5);
      for (const some of together ? [products] : products.map(one => [one])) device.project(h, rows, some);
      device.rope(a, rows, 32, angles);
      if (!together) await device.read(a, 0);
      device.rope(c, rows, 32, angles);
      await norm(0.1);
      for (const some of together ? [gates] : gates.map(one => [one])) device.project(h, rows, some);
      device.swiglu(g, u, rows);
      const last = await device.loadWeights('F32', 40, 96, async into => into.set(new Uint8Array(floats.buffer)));
      device.project(g, rows, [{ weights: last, out: y }]);
      return (await Promise.all([a, b, c, g, y, h].map(readAll))).flat();
    };
    const floats = normals(createRandom(7), 40 * 96);
    expect(await run(true)).toEqual(await run(false));
  });
});

describeGpu('small operations', () => {
  it('norms, turns and gates like js', async () => {
    expect(far(await runSmallOperations(await webgpu()), await runSmallOperations(createJsDevice()))).toBeLessThan(
      FLOAT,
    );
  });
});

describeGpu('choosing a token', () => {
  const vocab = 1000;
  // A few values many times: ties are the rule.
  const logits = normals(createRandom(9), 3 * vocab).map((x, i) => (i % 3 === 0 ? Math.round(2 * x) / 2 : 2 * x));
  it.each([
    { temperature: 0 },
    { temperature: 0.8, topK: 1 },
    { temperature: 1 },
    { temperature: 0.7, minP: 0.05 },
    { temperature: 1.3, topK: 40 },
    { temperature: 0.9, topP: 0.8 },
    { temperature: 1.1, topK: 100, topP: 0.7, minP: 0.01 },
  ])('as the sampler does: %o', async options => {
    const device = await webgpu();
    const tensor = device.tensor(3, vocab);
    device.write(tensor, 0, logits);
    const wanted: number[] = [];
    const found: (number | undefined)[] = [];
    for (let row = 0; row < 3; row++) {
      const [first, second] = [createSampler({ ...options, seed: row }), createSampler({ ...options, seed: row })];
      for (let n = 0; n < 4; n++) {
        wanted.push(first.sample(logits.slice(row * vocab, (row + 1) * vocab)).id);
        found.push(...(await device.choose!(tensor, [{ ...second.choice()!, row }]).ids));
      }
    }
    expect(found).toEqual(wanted);
  });

  it('whose row of a matrix can be had before anybody knows which it is', async () => {
    const device = await webgpu();
    const cols = 64;
    const bytes = randomWeights('Q8_0', vocab * cols, 0.1, seeded(9));
    const table = await device.loadWeights('Q8_0', vocab, cols, async into => into.set(bytes));
    const tensor = device.tensor(3, vocab);
    device.write(tensor, 0, logits);
    const out = device.tensor(3, cols);
    const choices = [2, 0].map(row => ({ row, temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 }));
    const before = device.choose!(tensor, choices);
    const { ids, names } = device.choose!(tensor, choices.slice(1));
    expect(new Set([...before.names, ...names]).size).toBe(3);
    device.embed(table, [before.names[0], 7, names[0]], out);
    const found = await Promise.all([0, 1, 2].map(row => device.read(out, row)));
    const exact = new Float32Array(vocab * cols);
    dequantize('Q8_0', bytes, exact);
    const known = [(await before.ids)[0]!, 7, (await ids)[0]!];
    expect(known[2]).toBe((await before.ids)[1]);
    expect(found).toEqual(known.map(id => exact.slice(id * cols, (id + 1) * cols)));
  });

  it('says so where none can be chosen', async () => {
    const device = await webgpu();
    const tensor = device.tensor(3, 300);
    device.write(tensor, 0, new Float32Array(900).fill(1));
    device.write(tensor, 0, new Float32Array(300).fill(Number.NEGATIVE_INFINITY));
    device.write(tensor, 1, Float32Array.of(0, Number.NaN));
    const choices = [0, 1, 2].map(row => ({ row, temperature: 0, topK: 0, topP: 1, minP: 0, random: 0 }));
    expect(await device.choose!(tensor, choices).ids).toEqual([undefined, undefined, 0]);
  });
});

/** More than four pages: two units of them, and runs that end within pages, at their ends and past them. */
const TOKENS = [3, 29, 1, 50, 20, 75];

async function agree(
  device: Device,
  setting: Setting,
  tolerance: number,
  tokens = TOKENS,
  slideAt?: number,
): Promise<void> {
  const full = { ...SHAPE, ...setting };
  const js = await runAttention(createJsDevice(), full, tokens, { most: 3, slideAt });
  const fast = await runAttention(device, full, tokens, { most: 3, slideAt, leaves: js.leaves });
  expect(fast.leaves.length).toBe(js.leaves.length);
  let different = 0;
  js.leaves.forEach((leaf, i) => {
    leaf.forEach((byte, j) => {
      if (byte !== fast.leaves[i][j]) different++;
    });
  });
  const codes = 2 * js.leaves.length * full.pageTokens * full.kvHeads * full.headDim;
  // The last bits of an f32 norm depend on the order of a sum.
  if (!setting.spec.includes('n32')) expect(different / codes, 'sealed codes').toBeLessThan(TIES);
  expect(worstOf(fast, js, full.headDim), 'outputs').toBeLessThan(tolerance);
}

type Run = Awaited<ReturnType<typeof runAttention>>;

/** How far outputs are from those of js. */
const worstOf = (fast: Run, js: Run, headDim: number) =>
  Math.max(...js.outputs.map((output, i) => farOf(fast.outputs[i], output, headDim, js.values)));

describeGpu('attention on packed pages', () => {
  it.each([
    ...zoo.filter(spec => !/-c|h$/.test(spec)),
    'vec-d2b4-own',
    'million-d8b12',
    'mead3u',
    'tri4i16/oaken',
    ...VARIANTS,
  ])('%s seals and attends like js', async spec => agree(await webgpu({ precise: true }), { spec }, FLOAT_ATTENTION));

  it.each([
    { spec: 'tq4', headDim: 80, heads: 2, kvHeads: 2 },
    { spec: 'tq4', headDim: 32, heads: 6, kvHeads: 2 },
    { spec: 'tq2', headDim: 32, heads: 6, kvHeads: 2 },
    { spec: 'tq2', headDim: 96, heads: 8, kvHeads: 1 },
    { spec: 'tq4u/tq2u', headDim: 128, heads: 4, kvHeads: 2, pageTokens: 64 },
    { spec: 'q8_0h', headDim: 64, heads: 2, kvHeads: 1 },
    { spec: 'q4_0h', headDim: 128, heads: 6, kvHeads: 2 },
    { spec: 'q8_0/q4_0', headDim: 256, heads: 2, kvHeads: 1, pageTokens: 32 },
    { spec: 'tq4u/q8_0', headDim: 128, heads: 3, kvHeads: 1, pageTokens: 64 },
    { spec: 'q4_0/tq2u', headDim: 128, heads: 2, kvHeads: 1, pageTokens: 128 },
    { spec: 'fp8', headDim: 96, heads: 2, kvHeads: 1 },
    { spec: 'f16', headDim: 20, heads: 2, kvHeads: 1 },
    { spec: 'tq4u/tq2', headDim: 256, heads: 2, kvHeads: 1 },
    { spec: 'tq4+recent40+sink7', headDim: 32, heads: 3, kvHeads: 3 },
    { spec: 'tq2u+sink70', headDim: 64, heads: 3, kvHeads: 1, pageTokens: 64 },
    { spec: 'tq4+sink50', headDim: 32, heads: 3, kvHeads: 1, pageTokens: 16 },
  ])('$spec, $headDim dims, $heads heads over $kvHeads', async setting => {
    const { spec: _, ...shape } = setting;
    await agree(await webgpu(shape), setting, INT8_ATTENTION);
  });

  it.each(['tq2u', 'tq4', 'kivi2g32', 'mead2u', 'mead2', 'vec-d4b8', 'tri8i4/tq2', 'oaken', 'q4_0', 'tq35'])(
    '%s in pages of 128 tokens',
    async spec => {
      const shape = { headDim: 64, heads: 2, kvHeads: 1, pageTokens: 128 };
      await agree(await webgpu(shape), { spec, ...shape }, INT8_ATTENTION, [130, 1, 140, 2]);
    },
  );

  it.each(['mead2', 'mead2u', 'tri8i4/tq2'])('%s once the first pages are dropped', async spec => {
    const chunks = Array(8).fill(SHAPE.pageTokens);
    await agree(await webgpu({ precise: true }), { spec }, FLOAT_ATTENTION, chunks, 3 * SHAPE.pageTokens);
  });

  it.each(['tq3', 'tq3u'])('%s, in planes of 128 codes', async spec => {
    const shape = { headDim: 128, heads: 1, kvHeads: 1, pageTokens: 128 };
    await agree(await webgpu(shape), { spec, ...shape }, INT8_ATTENTION, [130, 1, 140, 2]);
  });

  /** Shapes that GPUs meet most, and so the kernels that are written for them. */
  const PLAIN = { headDim: 128, heads: 4, kvHeads: 4, pageTokens: 128 };

  it.each([
    ...[
      'f16',
      'fp8',
      'q8_0',
      'q4_0',
      'oaken',
      'kivi2g32',
      'oscar2g32',
      'tq1',
      'tq2',
      'tq3',
      'tq4',
      'tq2u',
      'tq3u',
      'tq4u',
    ],
    ...['tq35', 'tq25', 'vec-d4b8', 'million-d4b8', 'tri8i4/tq2', 'mead2', 'mead2u'],
  ])('%s in pages of 128 tokens and dims: scores and outputs', async spec => {
    const device = await webgpu(PLAIN);
    const tolerance = /^f/.test(spec) ? FLOAT_ATTENTION : INT8_ATTENTION;
    expect(await farScores(device, createJsDevice(), { spec, ...PLAIN }), 'scores').toBeLessThan(tolerance);
    const js = await runAttention(createJsDevice(), { spec, ...PLAIN }, [270, 1], { most: 1 });
    const fast = await runAttention(device, { spec, ...PLAIN }, [270, 1], { most: 1, leaves: js.leaves });
    expect(worstOf(fast, js, PLAIN.headDim), 'outputs').toBeLessThan(tolerance);
  });

  it.each(['tq4', 'q8_0', 'oaken', 'mead2', 'tri8i4'])('scores of %s as floats', async spec => {
    expect(await farScores(await webgpu({ precise: true }), createJsDevice(), { spec, ...SHAPE })).toBeLessThan(
      FLOAT_ATTENTION,
    );
  });

  it('gives the same bits without subgroups', async () => {
    const [together, alone] = await Promise.all(
      [true, false].map(async subgroups => {
        return runAttention(await webgpu({ subgroups }), { ...SHAPE, spec: 'tq4u' }, TOKENS, { most: 3 });
      }),
    );
    expect(alone.outputs).toEqual(together.outputs);
  });

  it('keys turned to their page, mapped by a matrix of each head, less a mean', async () => {
    const { headDim, kvHeads, pageTokens } = SHAPE;
    const turn = Float64Array.from({ length: headDim / 2 - 2 }, (_, i) => 0.9 ** i);
    const shape = { headDim, kvHeads, pageTokens, turn };
    const random = createRandom(12);
    // No rotations: what encodes is the inverse of what decodes, near one.
    const scales = Float32Array.from({ length: kvHeads * headDim }, (_, i) => 1 + (i % 7) / 7);
    const map = (power: number) => {
      const matrix = new Float32Array(kvHeads * headDim * headDim);
      scales.forEach((scale, n) => {
        const [head, c] = [Math.floor(n / headDim), n % headDim];
        matrix[(head * headDim + c) * headDim + ((c + 5 + head) % headDim)] = scale ** power;
      });
      return matrix;
    };
    const mean = normals(random, kvHeads * headDim);
    const codec = (side: 'key' | 'value') =>
      pageCodec({
        spec: 'mapped',
        shape,
        budget: 1,
        stable: false,
        domain: mapped(headDim, { mean, encode: map(-1), decode: map(1), turn: side === 'key' ? turn : undefined }),
        format: affineFormat({ bits: 4, group: 32, axis: 'token', order: side === 'key' ? 'rows' : 'columns' }, shape),
      });
    const both = { keys: codec('key'), values: codec('value') };
    // Precise, since it is the maps that are tested: codes of values would be multiplied as integers.
    await agree(await webgpu({ precise: true }), { spec: 'f16', codec: both }, FLOAT_ATTENTION);
  });

  it('tq4u in precise mode is as good as floats', async () =>
    agree(await webgpu({ precise: true }), { spec: 'tq4u' }, FLOAT_ATTENTION));

  it.each(['f16', 'tq4', 'tq2u', 'tq35', 'mead2u'])('%s gives the same bits in any chunks', async spec => {
    // Several rows share a workgroup, as on a real GPU.
    const device = await webgpu({ unroll: 4 });
    const whole = await runAttention(device, { ...SHAPE, spec }, [150]);
    for (const chunks of [Array(150).fill(1), [...Array(11).fill(13), 7]]) {
      const cut = await runAttention(device, { ...SHAPE, spec }, chunks);
      expect(cut.leaves).toEqual(whole.leaves);
      expect(cut.outputs).toEqual(whole.outputs);
    }
  });
});
