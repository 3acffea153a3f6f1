/** Attention of the webgpu device in precise mode, which reads pages as floats: every codec against js. */
import { expect, it } from 'vitest';
import { affineFormat } from '../../src/codec/affine.ts';
import { linearMapDomain } from '../../src/codec/domain.ts';
import { pageCodec } from '../../src/codec/page-codec.ts';
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { zoo } from '../../src/codec/zoo.ts';
import { createJsDevice } from '../../src/kernel/js/device.ts';
import { CODEC_VARIANTS, maxScoreError, unequalHalvesCodec } from '../support/attention.ts';
import { itAll, LONG_CASES, matrix } from '../support/matrix.ts';
import { expectSameAsJs, FLOAT_ATTENTION } from './attention.ts';
import { describeGpu, openWebGpu, SMALL_SHAPE } from './gpu.ts';

const EVERY_CODEC = [
  ...zoo.filter(spec => !/h(-raw)?$/.test(spec)),
  'vec-d2b4-own',
  'million-d8b12',
  'mead3u',
  ...CODEC_VARIANTS,
];

/**
 * One codec per text of a kernel, but for constants and tables; `npm run test:long` runs every codec. SwiftShader compiles
 * each kernel for seconds.
 */
const CODECS = [
  ...['q8_0', 'fp8', 'oaken', 'kivi4g32', 'q4_0', 'tq4-raw', 'tq4-haar', 'tq4-n32', 'tq4/tq3', 'tq35', 'tq25', 'tq2u'],
  ...[
    'oscar2g32',
    'oscar2g32-xh',
    'kivi2g32-token/kivi2g32-channel',
    'vec-d4b8',
    'million-d8b12',
    'tri8i4/tq2',
    'mead3',
  ],
];

/** Two kinds of pages in a kernel. */
const PAIRS = ['kivi2g32/tq3', 'tq4/vec-d2b4-own', 'tri4i16/oaken', 'mead2/kivi2g32', 'mead2u/mead2'];

/** `npm test` has the WGSL of every kind of page in wgsl-golden.test.ts. */
const REPRESENTATIVES = {
  'kivi2g32/tq3': 'ranges per channel, and levels in bit planes',
  'mead2u/mead2': 'a bit width per channel with page-relative keys, and additive codebooks',
};

describeGpu('attention in precise mode', () => {
  const precise = () => openWebGpu({ precise: true });

  it.each(matrix([...(LONG_CASES ? EVERY_CODEC : CODECS), ...PAIRS], REPRESENTATIVES))(
    '%s: sealed pages and outputs like js',
    async spec => expectSameAsJs(await precise(), { spec }, FLOAT_ATTENTION),
  );

  it.each(
    // Page-relative keys whose page numbers do not start at 0; `npm test` runs them on wasm.
    matrix(['mead2', 'mead2u', 'tri8i4/tq2'], {}),
  )('%s: like js after the first pages are dropped', async spec => {
    const chunks = Array(8).fill(SMALL_SHAPE.pageTokens);
    await expectSameAsJs(await precise(), { spec }, FLOAT_ATTENTION, { chunks, slideAt: 3 * SMALL_SHAPE.pageTokens });
  });

  it.each(matrix(['tq4', 'q8_0', 'oaken', 'mead2', 'tri8i4'], {}))('%s: scores like js', async spec => {
    expect(await maxScoreError(await precise(), createJsDevice(), { spec, ...SMALL_SHAPE })).toBeLessThan(
      FLOAT_ATTENTION,
    );
  });

  it.each(matrix(['tq35-v', 'tq25-v-noqjl'], {}))(
    '%s, finer halves that differ between KV heads: like js',
    async spec => {
      const codec = unequalHalvesCodec(spec, SMALL_SHAPE);
      await expectSameAsJs(await precise(), { spec, codec }, FLOAT_ATTENTION);
    },
  );

  // `npm test` runs it on wasm.
  itAll('a linear map per head, a mean and page-relative keys: like js', async () => {
    const { headDim, kvHeads, pageTokens } = SMALL_SHAPE;
    const ropeFrequencies = Float64Array.from({ length: headDim / 2 - 2 }, (_, i) => 0.9 ** i);
    const shape = { headDim, kvHeads, pageTokens, ropeFrequencies };
    const random = createRandom(12);
    // Scaled permutations, not rotations: `encode` is the inverse of `decode`, not its transpose.
    const scales = Float32Array.from({ length: kvHeads * headDim }, (_, i) => 1 + (i % 7) / 7);
    const scaledPermutation = (power: number) => {
      const map = new Float32Array(kvHeads * headDim * headDim);
      scales.forEach((scale, n) => {
        const [head, c] = [Math.floor(n / headDim), n % headDim];
        map[(head * headDim + c) * headDim + ((c + 5 + head) % headDim)] = scale ** power;
      });
      return map;
    };
    const mean = normals(random, kvHeads * headDim);
    const codec = (side: 'key' | 'value') =>
      pageCodec({
        spec: 'mapped',
        shape,
        budget: 1,
        isIdempotent: false,
        domain: linearMapDomain(headDim, {
          mean,
          encode: scaledPermutation(-1),
          decode: scaledPermutation(1),
          ropeFrequencies: side === 'key' ? ropeFrequencies : undefined,
        }),
        format: affineFormat(
          { bits: 4, groupSize: 32, axis: 'token', order: side === 'key' ? 'rows' : 'columns' },
          shape,
        ),
      });
    const both = { keys: codec('key'), values: codec('value') };
    await expectSameAsJs(await precise(), { spec: 'f16', codec: both }, FLOAT_ATTENTION);
  });
});
