/** Attention of the wasm device against the js device, on fresh random data: every codec, odd sizes, edges. */

import { describe, expect, it } from 'vitest';
import { createSequence } from '../../src/cache/create-sequence.ts';
import { leafLayout } from '../../src/cache/leaf.ts';
import { affineFormat } from '../../src/codec/affine.ts';
import { linearMapDomain } from '../../src/codec/domain.ts';
import { createCodec, type KvCodec } from '../../src/codec/kv.ts';
import { pageCodec } from '../../src/codec/page-codec.ts';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { createRopeFrequencies } from '../../src/codec/parts/rope.ts';
import { norm as lengthOf } from '../../src/codec/parts/vector.ts';
import { zoo } from '../../src/codec/zoo.ts';
import type { Device } from '../../src/kernel/device.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import {
  type AttentionCase,
  CODEC_VARIANTS,
  relativeError,
  runAttention,
  unequalHalvesCodec,
} from '../support/attention.ts';
import { createTrained } from '../support/codec-suite.ts';
import { hashOf } from '../support/hash.ts';
import { matrix } from '../support/matrix.ts';
import { shareWasm } from './shared-devices.ts';

const wasm = shareWasm();

/** Maximum relative error of attention outputs: pages read as floats, and by int8 tables or int8 queries. */
const FLOAT_ATTENTION = 1e-3;
const INT8_ATTENTION = 3e-2;
const INTEGER_CODECS = /tq|kivi|oscar/;
/** mead adds several codebook entries, and the sum is rounded to 8 bits. */
const ADDITIVE_ATTENTION = 4e-2;
const ADDITIVE_CODECS = /mead[\d.]+$/;
/** Maximum error of scores relative to |q| |k|: as floats, and as integers. */
const FLOAT_SCORE = 1e-3;
const INTEGER_SCORE = 1e-2;
/** Maximum share of sealed bytes that differ because a value lies on a rounding boundary. */
const MAX_TIES = 1e-3;

/** One codec per loop that reads a kind of page. Others are among the shapes: mead1.5, and tq35-v with unequal halves. */
const REPRESENTATIVES = {
  f16: 'rows of f16',
  fp8: 'rows of bytes',
  q8_0: 'blocks with a scale each',
  oaken: 'outlier lists',
  kivi2g32: 'ranges per channel (keys) and per token (values)',
  tq4: '16-entry tables over columns of nibbles',
  tq2u: 'int8 dot products on uniform codes',
  tq3: 'a third bit in its own plane',
  oscar2g32: 'rotated ranges with a norm per token',
  'vec-d4b8': 'codebooks',
  mead2u: 'a bit width per channel, page-relative keys',
};
const nameOf = ({ spec }: { spec: string }) => spec;

const jsResults = new Map<string, ReturnType<typeof runAttention>>();
/** The js device is slow: it runs each setting once, and computes the last of the rows that wasm computes together. */
function jsAttention(setting: AttentionCase, tokens: readonly number[], slideAt?: number) {
  const run = () => runAttention(createJsDevice(), setting, tokens, { lastRows: 1, slideAt });
  if (setting.codec) return run();
  const name = JSON.stringify([setting, tokens, slideAt]);
  const result = jsResults.get(name) ?? run();
  jsResults.set(name, result);
  return result;
}

/** More than four pages: two splits. */
const TOKENS = [3, 125, 1, 200, 71, 300];

async function expectSameAsJs(
  device: Device,
  setting: AttentionCase,
  tolerance = ADDITIVE_CODECS.test(setting.spec)
    ? ADDITIVE_ATTENTION
    : INTEGER_CODECS.test(setting.spec)
      ? INT8_ATTENTION
      : FLOAT_ATTENTION,
  tokens: readonly number[] = TOKENS,
  slideAt?: number,
): Promise<void> {
  const js = await jsAttention(setting, tokens, slideAt);
  const fast = await runAttention(device, setting, tokens, { lastRows: 2, slideAt, leaves: js.leaves });
  expect(fast.leaves.length).toBe(js.leaves.length);
  let [different, bytes] = [0, 0];
  js.leaves.forEach((leaf, i) => {
    leaf.forEach((byte, j) => {
      if (byte !== fast.leaves[i][j]) different++;
    });
    bytes += leaf.length;
  });
  // The last bits of an f32 norm depend on the order of summation.
  if (!setting.spec.includes('n32')) expect(different / Math.max(1, bytes), 'sealed bytes').toBeLessThan(MAX_TIES);
  const worst = Math.max(...js.attended.map(row => relativeError(fast.outputs[row], js.outputs[row])));
  expect(worst, 'attention').toBeLessThan(tolerance);
}

/** A linear map per head that is not a rotation, with page-relative keys. */
function mappedCodec(headDim: number, kvHeads: number): Pick<KvCodec, 'keys' | 'values'> {
  const shape = { headDim, kvHeads, pageTokens: 128 };
  const random = createRandom(headDim);
  const side = (ropeFrequencies?: Float64Array) => {
    const [encode, decode] = [0, 1].map(() => new Float32Array(kvHeads * headDim * headDim));
    for (let i = 0; i < kvHeads * headDim; i++) {
      // A scale per dim and a cyclic shift of the dims, different for every head.
      const to = i - (i % headDim) + ((i + 1 + Math.floor(i / headDim)) % headDim);
      const scale = 0.5 + random.uniform();
      encode[to * headDim + (i % headDim)] = scale;
      decode[to * headDim + (i % headDim)] = 1 / scale;
    }
    const domain = linearMapDomain(headDim, {
      mean: normals(random, kvHeads * headDim),
      encode,
      decode,
      ropeFrequencies,
    });
    const format = affineFormat({ bits: 4, groupSize: 16, axis: 'token', order: 'rows' }, shape);
    return pageCodec({ spec: 'mapped', shape, budget: 1, isIdempotent: false, domain, format });
  };
  return { keys: side(createRopeFrequencies(headDim).subarray(0, headDim / 2 - 2)), values: side() };
}

describe('attention on packed pages', () => {
  const OTHERS = ['vec-d2b8-smooth/million-d8b8-own', 'million-d16b1', 'vec-d4b7-had/million-d4b3'];
  it.each(
    matrix([...zoo, ...CODEC_VARIANTS, ...OTHERS], {
      ...REPRESENTATIVES,
      'kivi2g32-token/kivi2g32-channel': 'ranges per token (keys) and per channel (values)',
      'tri8i4/tq2': 'RoPE pair spectrum',
      'million-d16b1': 'a code per head',
    }),
  )('%s: sealed pages and outputs like js', async spec => expectSameAsJs(await wasm(), { spec }));

  const SHAPES = [
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
    { spec: 'mead1.5', headDim: 24, heads: 4, kvHeads: 2 },
    { spec: 'mead2', headDim: 40, heads: 5, kvHeads: 1 },
  ];
  it.each(
    matrix(
      SHAPES,
      {
        tq4: 'a head dim that is not a power of two',
        'tq4u/tq2': 'the largest head, keys and values of different codecs',
        'tq4+recent100+sink7': 'an f16 window and sinks that end within a page',
        'tq2u+sink200': 'sinks that span several pages',
        'tri5i8/f16+recent50': 'an odd number of pairs',
        'mead1.5': 'small heads',
      },
      nameOf,
    ),
  )('$spec, $headDim dims, $heads heads on $kvHeads KV heads: like js', async setting => {
    await expectSameAsJs(
      await wasm({ headDim: setting.headDim, heads: setting.heads, kvHeads: setting.kvHeads }),
      setting,
    );
  });

  const PAGES = [
    { spec: 'tq4u/tq2', pageTokens: 16 },
    { spec: 'tq3', pageTokens: 48 },
    { spec: 'tq2u/tq4', pageTokens: 96 },
    { spec: 'oaken/kivi1g32', pageTokens: 64 },
    { spec: 'tq1/tq3u', pageTokens: 256 },
  ];
  it.each(
    matrix(
      PAGES,
      {
        'tq4u/tq2': 'the smallest page',
        'tq1/tq3u': 'the largest page',
      },
      nameOf,
    ),
  )('$spec in pages of $pageTokens tokens', async ({ spec, pageTokens }) => {
    const tokens = pageTokens < 64 ? TOKENS.map(count => Math.ceil(count / 3)) : TOKENS;
    await expectSameAsJs(await wasm({ pageTokens }), { spec, pageTokens }, undefined, tokens);
  });

  it.each([
    { spec: 'tq4', headDim: 64, heads: 6, kvHeads: 2 },
    { spec: 'tq4+recent100', headDim: 80, heads: 3, kvHeads: 3 },
  ])(
    'a linear map per head and page-relative keys, $headDim dims, $heads heads on $kvHeads KV heads: like js',
    async setting => {
      const { headDim, kvHeads } = setting;
      await expectSameAsJs(await wasm(setting), { ...setting, codec: mappedCodec(headDim, kvHeads) }, FLOAT_ATTENTION);
    },
  );

  it.each([
    { spec: 'tq35-v', headDim: 64, heads: 6, kvHeads: 3 },
    { spec: 'tq35-v/tq25-v-noqjl', headDim: 80, heads: 2, kvHeads: 1 },
  ])('$spec, finer halves that differ between $kvHeads KV heads: like js', async setting => {
    const codec = unequalHalvesCodec(setting.spec, setting);
    await expectSameAsJs(await wasm(setting), { ...setting, codec }, FLOAT_ATTENTION);
  });

  it.each(['mead2', 'mead2u', 'tri8i4/tq2'])('%s: like js after the first pages are dropped', async spec => {
    const pageTokens = 32;
    const chunks = Array(10).fill(pageTokens);
    await expectSameAsJs(await wasm({ pageTokens }), { spec, pageTokens }, ADDITIVE_ATTENTION, chunks, 3 * pageTokens);
  });

  it.each(['million-d4b12/million-d8b16', 'million-d8b9-own/million-d2b13-own'])(
    '%s: codes of more than 8 bits, random codebooks',
    async spec => {
      const shape = { headDim: 8, kvHeads: 2 };
      const learned = spec.split('/').map(side => {
        const [, dims, bits] = side.match(/d(\d+)b(\d+)/)!.map(Number);
        const books = side.endsWith('own') ? 16 / dims : 1;
        const book = normals(createRandom(bits), books * 2 ** bits * dims);
        return { [side]: book, [`${side}.centered`]: book };
      });
      const codec = createCodec(spec, shape, { key: learned[0], value: learned[1] });
      // Two pages: each vector is compared with up to 65,536 others.
      const tokens = [3, 125, 1, 140];
      const setting = { spec: 'tq4', headDim: 8, heads: 2, codec };
      await expectSameAsJs(await wasm({ headDim: 8, heads: 2 }), setting, undefined, tokens);
    },
  );

  it.each(matrix(['tq4', 'tq2', 'tq3u', 'kivi2g32', 'oscar2g32'], { tq4: 'dequantized pages' }))(
    '%s in precise mode: as accurate as floats',
    async spec => {
      await expectSameAsJs(await wasm({ precise: true }), { spec }, FLOAT_ATTENTION);
    },
  );

  it.each(matrix(['tq4', 'tq2u', 'kivi4g32', 'mead2'], { tq4: 'tables', tq2u: 'dot products' }))(
    '%s in plain SIMD, on one thread',
    async spec => {
      await expectSameAsJs(await wasm({ relaxed: false, threads: 1 }), { spec });
    },
  );

  it.each(
    matrix(['f16', 'tq4', 'tq2', 'tq2u', 'kivi2g32', 'oscar2g32', 'tq35', 'q4_0', 'mead2'], {
      f16: 'rows of f16, as in every tail',
      tq4: '16-entry tables',
    }),
  )('%s gives the same bits in any chunks and on any number of threads', async spec => {
    const whole = await runAttention(await wasm(), { spec }, [400]);
    for (const [chunks, threads] of [
      [Array(400).fill(1), 2],
      [[...Array(57).fill(7), 1], 3],
      [[128, 128, 128, 16], 1],
    ] as const) {
      const cut = await runAttention(await wasm({ threads }), { spec }, chunks);
      expect(hashOf(cut)).toEqual(hashOf(whole));
    }
  });
});

describe('scores of packed keys', () => {
  /**
   * Logarithms of the weights of a page's first tokens, as a device sees them: f16 values that are 1 in a dim of their
   * own bring each weight out in that dim. Known up to one constant a head.
   */
  async function logWeights(device: Device, spec: string, keys: Float32Array, queries: Float32Array) {
    const [headDim, kvHeads, heads] = [64, 2, 6];
    const shape = { headDim, kvHeads, ropeFrequencies: createRopeFrequencies(headDim) };
    const codec = createTrained(`${spec}/f16+sink0`, shape, new Float32Array(kvHeads * headDim));
    const { pageTokens } = codec.shape;
    const sequence = createSequence({
      device,
      shape: { headDim, kvHeads, pageTokens, sinks: 0 },
      leaf: leafLayout([codec]),
      recent: 0,
      context: 4 * pageTokens,
    });
    const [k, v, q, out] = [kvHeads, kvHeads, heads, heads].map(n => device.createTensor(pageTokens + 1, n * headDim));
    device.writeRows(k, 0, keys);
    for (let t = 0; t < headDim; t++)
      device.writeRows(
        v,
        t,
        Float32Array.from({ length: kvHeads * headDim }, (_, i) => (i % headDim === t ? 1 : 0)),
      );
    device.writeRows(q, 0, queries);
    sequence.plan(pageTokens);
    const { view } = sequence;
    await device.ensureMemory?.([view]);
    device.append(0, k, v, [{ view, row: 0, count: pageTokens, position: 0, sealedPages: 0 }]);
    sequence.commit(pageTokens);
    sequence.plan(1);
    device.seal(0, [{ view, page: 0 }]);
    const next = { view, count: 1, position: pageTokens, sealedPages: 1 };
    device.append(0, k, v, [{ ...next, row: pageTokens }]);
    device.attend(0, q, out, [{ ...next, row: 0 }], { scale: 1 / 8 });
    return (await device.readRows(out, 0)).map(Math.log);
  }

  const KEY_CODECS = zoo.filter(spec => !spec.includes('/'));
  it.each(matrix(KEY_CODECS, { tq4: 'lookup tables', tq2u: 'int8 dot products', oaken: 'outliers' }))(
    '%s: like js',
    async spec => {
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
    },
  );
});
