/** The wasm device against the js device, on fresh random data: every weight type, every codec, odd sizes, edges. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { leafLayout } from '../src/cache/leaf.ts';
import { createSequence } from '../src/cache/sequence.ts';
import { affineFormat } from '../src/codec/affine.ts';
import { createTrained } from '../src/codec/codec.case.ts';
import { mapped } from '../src/codec/domain.ts';
import { createCodec, type KvCodec } from '../src/codec/kv.ts';
import { pageCodec } from '../src/codec/page-codec.ts';
import { createRandom, normals } from '../src/codec/parts/random.ts';
import { norm as lengthOf } from '../src/codec/parts/vector.ts';
import { zoo } from '../src/codec/zoo.ts';
import { turnOf } from '../src/eval/vectors.ts';
import type { Device } from '../src/kernel/device.ts';
import { createJsDevice } from '../src/kernel/js/device.ts';
import { createWasmDevice, type WasmOptions } from '../src/kernel/wasm/device.ts';
import { dequantize } from '../src/kernel/weights/dequantize.ts';
import { weightTypes } from '../src/kernel/weights/types.ts';
import { far, runAttention, runSmallOperations, type Setting, VARIANTS } from './attention.ts';
import { randomWeights } from './quantize.ts';
import { seeded } from './random.ts';

/** Of the length of the vectors involved. */
const INT8_MATMUL = 0.012;
/** K types have their products of scales rounded to f16. */
const PRECISE_MATMUL = 5e-4;
const FLOAT = 2e-5;
/** Attention outputs over their length: read as floats, and read by int8 tables or int8 queries. */
const FLOAT_ATTENTION = 1e-3;
const INT8_ATTENTION = 3e-2;
const INTEGER_CODECS = /tq|kivi|oscar/;
/** A quad of mead is a sum of several entries, and the sum has 8 bits. */
const ADDITIVE_ATTENTION = 4e-2;
const ADDITIVE_CODECS = /mead[\d.]+$/;
/** Scores over |q| |k|: in floats, and in integers. */
const FLOAT_SCORE = 1e-3;
const INTEGER_SCORE = 1e-2;
/** Share of sealed codes that may fall on the other side of a tie. */
const TIES = 1e-3;

const open: Device[] = [];
async function wasm(options: Partial<WasmOptions> = {}): Promise<Device> {
  const device = await createWasmDevice({ headDim: 64, heads: 6, kvHeads: 2, pageTokens: 128, threads: 2, ...options });
  open.push(device);
  return device;
}
afterAll(() => Promise.all(open.map(device => device.dispose())));

describe.each([
  ['relaxed SIMD', { relaxed: true }, INT8_MATMUL],
  ['plain SIMD', { relaxed: false }, INT8_MATMUL],
  ['precise', { precise: true }, PRECISE_MATMUL],
])('%s', (_, options, tolerance) => {
  let device: Device;
  beforeAll(async () => {
    device = await wasm(options);
  });

  it.each(weightTypes)('multiplies %s weights', async type => {
    const random = seeded(3);
    const [rows, cols, batch] = [37, 512, 6];
    const bytes = randomWeights(type, rows * cols, 0.1, random);
    const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
    const exact = new Float32Array(rows * cols);
    dequantize(type, bytes, exact);
    const x = normals(createRandom(5), batch * cols);
    const bias = normals(createRandom(6), rows);
    const [input, biasTensor, out] = [device.tensor(batch, cols), device.tensor(1, rows), device.tensor(batch, rows)];
    device.write(input, 0, x);
    device.write(biasTensor, 0, bias);
    device.project(input, batch, [{ weights, out, bias: biasTensor }]);
    device.project(input, batch, [{ weights, out, add: true }]);
    for (let r = 0; r < batch; r++) {
      const expected = Float32Array.from({ length: rows }, (_, o) => {
        let sum = 0;
        for (let i = 0; i < cols; i++) sum += x[r * cols + i] * exact[o * cols + i];
        return 2 * sum + bias[o];
      });
      expect(far(await device.read(out, r), expected)).toBeLessThan(/^[QI]/.test(type) ? tolerance : FLOAT);
    }
    // A row alone gives the very same bits as in the batch.
    const [alone, single] = [device.tensor(1, cols), device.tensor(1, rows)];
    device.copy(input, 5, alone, 0, 1);
    device.project(alone, 1, [{ weights, out: single, bias: biasTensor }]);
    device.project(alone, 1, [{ weights, out: single, add: true }]);
    expect(await device.read(single, 0)).toEqual(await device.read(out, 5));
  });

  it.each(['Q4_1', 'Q2_K', 'Q6_K', 'Q8_0'] as const)('multiplies many rows by long rows of %s', async type => {
    // More than a strip of activations and several panels of weights; rows of both ends of a strip and of a tile.
    const [rows, cols, batch] = [38, 2560, 263];
    const bytes = randomWeights(type, rows * cols, 0.1, seeded(8));
    const weights = await device.loadWeights(type, rows, cols, async into => into.set(bytes));
    const exact = new Float32Array(rows * cols);
    dequantize(type, bytes, exact);
    const x = normals(createRandom(9), batch * cols);
    const [input, out, alone, single] = [
      [batch, cols],
      [batch, rows],
      [1, cols],
      [1, rows],
    ].map(([r, c]) => device.tensor(r, c));
    device.write(input, 0, x);
    device.project(input, batch, [{ weights, out }]);
    for (const r of [0, 3, 255, 256, 259, 262]) {
      const expected = Float32Array.from({ length: rows }, (_, o) => {
        let sum = 0;
        for (let i = 0; i < cols; i++) sum += x[r * cols + i] * exact[o * cols + i];
        return sum;
      });
      expect(far(await device.read(out, r), expected)).toBeLessThan(tolerance);
      device.copy(input, r, alone, 0, 1);
      device.project(alone, 1, [{ weights, out: single }]);
      expect(await device.read(single, 0)).toEqual(await device.read(out, r));
    }
  });

  it('reads rows of an embedding', async () => {
    const bytes = randomWeights('Q8_0', 50 * 64, 1, seeded(4));
    const table = await device.loadWeights('Q8_0', 50, 64, async into => into.set(bytes));
    const exact = new Float32Array(50 * 64);
    dequantize('Q8_0', bytes, exact);
    const out = device.tensor(2, 64);
    device.embed(table, [49, 3], out);
    expect(await device.read(out, 0)).toEqual(exact.slice(49 * 64));
    expect(await device.read(out, 1)).toEqual(exact.slice(3 * 64, 4 * 64));
  });

  it('norms, turns and gates like js', async () => {
    expect(far(await runSmallOperations(device), await runSmallOperations(createJsDevice()))).toBeLessThan(FLOAT);
  });
});

it.each([1, 2])('weights past the limit of one memory go on in others, on %i threads', async threads => {
  // 4 MiB a memory, a quarter of it kept for the cache; each matrix takes 1.1 MB.
  const small = await wasm({ maxPages: 64, threads });
  const large = await wasm({ threads });
  const [rows, cols] = [1024, 1024];
  const x = normals(createRandom(7), 3 * cols);
  for (let n = 0; n < 8; n++) {
    const bytes = randomWeights('Q8_0', rows * cols, 0.1, seeded(n));
    const outputs: Float32Array[] = [];
    for (const device of [small, large]) {
      const weights = await device.loadWeights('Q8_0', rows, cols, async into => into.set(bytes));
      const [input, bias, out] = [device.tensor(3, cols), device.tensor(1, rows), device.tensor(3, rows)];
      device.write(input, 0, x);
      device.write(bias, 0, x.slice(0, rows));
      device.project(input, 3, [{ weights, out, bias }]);
      device.project(input, 3, [{ weights, out, add: true }]);
      device.embed(weights, [5], input);
      outputs.push(await device.read(out, 2), await device.read(input, 0));
      for (const tensor of [input, bias, out]) device.free(tensor);
    }
    expect(outputs[0]).toEqual(outputs[2]);
    expect(outputs[1]).toEqual(outputs[3]);
  }
  expect(small.bytes).toBeGreaterThan(64 * 65536);
});

/** More than four pages: two units of them. */
const TOKENS = [3, 125, 1, 200, 71, 300];

async function agree(
  device: Device,
  setting: Setting,
  tolerance = ADDITIVE_CODECS.test(setting.spec)
    ? ADDITIVE_ATTENTION
    : INTEGER_CODECS.test(setting.spec)
      ? INT8_ATTENTION
      : FLOAT_ATTENTION,
  tokens: readonly number[] = TOKENS,
  slideAt?: number,
): Promise<void> {
  const js = await runAttention(createJsDevice(), setting, tokens, { most: 2, slideAt });
  const fast = await runAttention(device, setting, tokens, { most: 2, slideAt, leaves: js.leaves });
  expect(fast.leaves.length).toBe(js.leaves.length);
  let [different, bytes] = [0, 0];
  js.leaves.forEach((leaf, i) => {
    leaf.forEach((byte, j) => {
      if (byte !== fast.leaves[i][j]) different++;
    });
    bytes += leaf.length;
  });
  // The last bits of an f32 norm depend on the order of a sum.
  if (!setting.spec.includes('n32')) expect(different / Math.max(1, bytes), 'sealed bytes').toBeLessThan(TIES);
  const worst = Math.max(...js.outputs.map((output, i) => far(fast.outputs[i], output)));
  expect(worst, 'attention').toBeLessThan(tolerance);
}

/** Keys and values through a map a head that is no rotation, keys relative to their page's start. */
function mappedCodec(headDim: number, kvHeads: number): Pick<KvCodec, 'keys' | 'values'> {
  const shape = { headDim, kvHeads, pageTokens: 128 };
  const random = createRandom(headDim);
  const side = (turn?: Float64Array) => {
    const [encode, decode] = [0, 1].map(() => new Float32Array(kvHeads * headDim * headDim));
    for (let i = 0; i < kvHeads * headDim; i++) {
      // A stretch a dim and a shift of the dims, another one for every head.
      const to = i - (i % headDim) + ((i + 1 + Math.floor(i / headDim)) % headDim);
      const stretch = 0.5 + random.uniform();
      encode[to * headDim + (i % headDim)] = stretch;
      decode[to * headDim + (i % headDim)] = 1 / stretch;
    }
    const domain = mapped(headDim, { mean: normals(random, kvHeads * headDim), encode, decode, turn });
    const format = affineFormat({ bits: 4, group: 16, axis: 'token', order: 'rows' }, shape);
    return pageCodec({ spec: 'mapped', shape, budget: 1, stable: false, domain, format });
  };
  return { keys: side(turnOf(headDim).subarray(0, headDim / 2 - 2)), values: side() };
}

describe('attention on packed pages', () => {
  it.each([...zoo, ...VARIANTS, 'vec-d2b8-smooth/million-d8b8-own', 'million-d16b1', 'vec-d4b7-had/million-d4b3'])(
    '%s seals and attends like js',
    async spec => agree(await wasm(), { spec }),
  );

  it.each([
    { spec: 'tq4', headDim: 80, heads: 2, kvHeads: 2 },
    { spec: 'tq2', headDim: 96, heads: 8, kvHeads: 1 },
    { spec: 'tq3u', headDim: 128, heads: 8, kvHeads: 2 },
    { spec: 'tq4u/tq2', headDim: 256, heads: 2, kvHeads: 1 },
    { spec: 'oscar2g32', headDim: 128, heads: 5, kvHeads: 1 },
    { spec: 'tq4+sink0', headDim: 64, heads: 4, kvHeads: 4 },
    { spec: 'tq4+recent100+sink7', headDim: 64, heads: 3, kvHeads: 3 },
    { spec: 'kivi2g32+recent128', headDim: 64, heads: 3, kvHeads: 1 },
    { spec: 'tq2u+sink200', headDim: 64, heads: 3, kvHeads: 1 },
    { spec: 'vec-d5b4/vec-d5b4-own', headDim: 80, heads: 2, kvHeads: 2 },
    { spec: 'tri30i16/tq4', headDim: 64, heads: 4, kvHeads: 2 },
    { spec: 'tri5i8/f16+recent50', headDim: 80, heads: 3, kvHeads: 3 },
    { spec: 'oaken', headDim: 80, heads: 2, kvHeads: 2 },
    { spec: 'oaken+recent50', headDim: 128, heads: 3, kvHeads: 3 },
    { spec: 'mead1.5', headDim: 24, heads: 8, kvHeads: 4 },
    { spec: 'mead2', headDim: 40, heads: 5, kvHeads: 1 },
  ])('$spec, $headDim dims, $heads heads over $kvHeads', async setting => {
    await agree(await wasm({ headDim: setting.headDim, heads: setting.heads, kvHeads: setting.kvHeads }), setting);
  });

  it.each([
    { spec: 'tq4u/tq2', pageTokens: 16 },
    { spec: 'tq3', pageTokens: 48 },
    { spec: 'tq2u/tq4', pageTokens: 96 },
    { spec: 'oaken/kivi1g32', pageTokens: 64 },
    { spec: 'tq1/tq3u', pageTokens: 256 },
  ])('$spec in pages of $pageTokens tokens', async ({ spec, pageTokens }) => {
    await agree(await wasm({ pageTokens }), { spec, pageTokens });
  });

  it.each([
    { spec: 'tq4', headDim: 64, heads: 6, kvHeads: 2 },
    { spec: 'tq4+recent100', headDim: 80, heads: 3, kvHeads: 3 },
  ])('a map a head and keys relative to their page, $headDim dims, $heads heads over $kvHeads', async setting => {
    const { headDim, kvHeads } = setting;
    await agree(await wasm(setting), { ...setting, codec: mappedCodec(headDim, kvHeads) }, FLOAT_ATTENTION);
  });

  it.each(['mead2', 'mead2u', 'tri8i4/tq2'])('%s once the first pages are dropped', async spec => {
    const pageTokens = 32;
    const chunks = Array(10).fill(pageTokens);
    await agree(await wasm({ pageTokens }), { spec, pageTokens }, ADDITIVE_ATTENTION, chunks, 3 * pageTokens);
  });

  it.each(['million-d4b12/million-d8b16', 'million-d8b9-own/million-d2b13-own'])(
    '%s: codes of more than a byte, in books that nobody learned',
    async spec => {
      const shape = { headDim: 8, kvHeads: 2 };
      const learned = spec.split('/').map(side => {
        const [, dims, bits] = side.match(/d(\d+)b(\d+)/)!.map(Number);
        const books = side.endsWith('own') ? 16 / dims : 1;
        return { [side]: normals(createRandom(bits), books * 2 ** bits * dims) };
      });
      const codec = createCodec(spec, shape, { key: learned[0], value: learned[1] });
      await agree(await wasm({ headDim: 8, heads: 2 }), { spec: 'tq4', headDim: 8, heads: 2, codec });
    },
  );

  it.each(['tq4', 'tq2', 'tq3u', 'kivi2g32', 'oscar2g32'])('%s in precise mode is as good as floats', async spec => {
    await agree(await wasm({ precise: true }), { spec }, FLOAT_ATTENTION);
  });

  it.each(['tq4', 'tq2u', 'kivi4g32', 'mead2'])('%s in plain SIMD, on one thread', async spec => {
    await agree(await wasm({ relaxed: false, threads: 1 }), { spec });
  });

  it.each(['f16', 'tq4', 'tq2', 'tq2u', 'kivi2g32', 'oscar2g32', 'tq35', 'q4_0', 'mead2'])(
    '%s gives the same bits however the tokens are cut into chunks, and on any number of threads',
    async spec => {
      const whole = await runAttention(await wasm(), { spec }, [400]);
      for (const [chunks, threads] of [
        [Array(400).fill(1), 2],
        [[...Array(57).fill(7), 1], 3],
        [[128, 128, 128, 16], 1],
      ] as const) {
        const cut = await runAttention(await wasm({ threads }), { spec }, chunks);
        expect(cut.leaves).toEqual(whole.leaves);
        expect(cut.outputs).toEqual(whole.outputs);
      }
    },
  );
});

describe('scores of packed keys', () => {
  /**
   * Logarithms of the weights of a page's first tokens, as a device sees them: f16 values that are 1 in a dim of their
   * own bring each weight out in that dim. Known up to one constant a head.
   */
  async function logWeights(device: Device, spec: string, keys: Float32Array, queries: Float32Array) {
    const [headDim, kvHeads, heads] = [64, 2, 6];
    const shape = { headDim, kvHeads, turn: turnOf(headDim) };
    const codec = createTrained(`${spec}/f16+sink0`, shape, new Float32Array(kvHeads * headDim));
    const { pageTokens } = codec.shape;
    const sequence = createSequence({
      device,
      shape: { headDim, kvHeads, pageTokens, sinks: 0 },
      leaf: leafLayout([codec]),
      recent: 0,
      context: 4 * pageTokens,
    });
    const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.tensor(pageTokens + 1, n * headDim));
    device.write(k, 0, keys);
    for (let t = 0; t < headDim; t++)
      device.write(
        v,
        t,
        Float32Array.from({ length: kvHeads * headDim }, (_, i) => (i % headDim === t ? 1 : 0)),
      );
    device.write(q, 0, queries);
    sequence.plan(pageTokens);
    const { view } = sequence;
    device.append(0, k, v, [{ view, row: 0, count: pageTokens, position: 0, sealed: 0 }]);
    sequence.commit(pageTokens);
    sequence.plan(1);
    device.seal(view, 0, 0, view.leaves[0]);
    const next = { view, count: 1, position: pageTokens, sealed: 1 };
    device.append(0, k, v, [{ ...next, row: pageTokens }]);
    device.attend(0, q, out, [{ ...next, row: 0 }], 1 / 8);
    return (await device.read(out, 0)).map(Math.log);
  }

  it.each(zoo.filter(spec => !spec.includes('/')))('%s agrees with js', async spec => {
    const random = createRandom(11);
    const keys = normals(random, 129 * 2 * 64);
    const queries = normals(random, 6 * 64);
    const [fast, exact] = await Promise.all(
      [await wasm(), createJsDevice()].map(device => logWeights(device, spec, keys, queries)),
    );
    let worst = 0;
    for (let head = 0; head < 6; head++) {
      const difference = Float32Array.from({ length: 64 }, (_, t) => fast[64 * head + t] - exact[64 * head + t]);
      const constant = difference.reduce((a, b) => a + b) / 64;
      const query = lengthOf(queries.subarray(64 * head, 64 * (head + 1)));
      difference.forEach((x, t) => {
        const at = 64 * (2 * t + Math.floor(head / 3));
        worst = Math.max(worst, Math.abs(x - constant) / ((query * lengthOf(keys.subarray(at, at + 64))) / 8));
      });
    }
    const integer = INTEGER_CODECS.test(spec) || ADDITIVE_CODECS.test(spec);
    expect(worst).toBeLessThan(integer ? INTEGER_SCORE : FLOAT_SCORE);
  });
});
