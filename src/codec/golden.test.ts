/**
 * Golden pages: one file per codec with the bytes of a page of fixed vectors. If one of these tests fails, stored pages can
 * no longer be read. If that is intended, increment FORMAT_VERSION and write new files with
 * `KVASIR_GOLDEN=write npx vitest run golden`.
 */
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { learnOnce } from '../../test/support/codec-suite.ts';
import { createCodec } from './kv.ts';
import { samplesOf } from './learned.ts';
import { FORMAT_VERSION } from './page-fields.ts';
import { createRandom } from './parts/random.ts';
import { lossBetween } from './validate.ts';
import { zoo } from './zoo.ts';

const FOLDER = new URL('../../test/fixtures/pages/', import.meta.url);
/** Lines of nibbles have two blocks, so that the order of blocks is tested. */
const SHAPE = { headDim: 64, kvHeads: 2, pageTokens: 64 };
const SPECS = [
  ...zoo,
  'tq4-n32',
  'tq4-haar',
  'tq4-r3-seed7',
  'kivi1g32',
  'kivi8g32',
  'kivi2g32-channel',
  'oscar2g32-xh',
];

/** Approximately Gaussian. Uses additions only, so that the result does not depend on the machine's cosine. */
function vectors(seed: number, length: number): Float32Array {
  const { uniform } = createRandom(seed);
  return Float32Array.from({ length }, () => uniform() + uniform() + uniform() + uniform() - 2);
}

const length = SHAPE.pageTokens * SHAPE.kvHeads * SHAPE.headDim;
const mean = vectors(3, SHAPE.kvHeads * SHAPE.headDim);
const samples = samplesOf(vectors(4, 512 * SHAPE.kvHeads * SHAPE.headDim), SHAPE);
const fileOf = (spec: string) => new URL(`${spec.replace('/', '_')}.json`, FOLDER);

it.each(SPECS)('%s writes and reads its golden page', spec => {
  const learned = learnOnce(spec, SHAPE, samples);
  const codec = createCodec(spec, SHAPE, { ...learned, key: { ...learned.key, mean } });
  const inputs = { key: vectors(1, length), value: vectors(2, length) };
  const pages = { key: new Uint8Array(codec.keys.pageBytes), value: new Uint8Array(codec.values.pageBytes) };
  codec.keys.encode(inputs.key, SHAPE.pageTokens, pages.key, 0);
  codec.values.encode(inputs.value, SHAPE.pageTokens, pages.value, 0);
  const written = {
    spec,
    formatVersion: FORMAT_VERSION,
    ...SHAPE,
    key: Buffer.from(pages.key).toString('base64'),
    value: Buffer.from(pages.value).toString('base64'),
  };
  if (process.env.KVASIR_GOLDEN === 'write') {
    mkdirSync(FOLDER, { recursive: true });
    writeFileSync(fileOf(spec), `${JSON.stringify(written, null, 1)}\n`);
  }
  expect(existsSync(fileOf(spec)), `no golden page for ${spec}; see the top of this file`).toBe(true);
  const golden = JSON.parse(readFileSync(fileOf(spec), 'utf8'));
  expect(written, `the page format of ${spec} changed; see the top of this file`).toEqual(golden);

  const decoded = new Float32Array(length);
  codec.keys.decode(Buffer.from(golden.key, 'base64'), SHAPE.pageTokens, decoded, 0);
  expect(lossBetween(inputs.key, decoded, SHAPE.headDim).mse).toBeLessThan(3 * codec.keys.budget);
});

it('there is no golden page without a codec', () => {
  expect(readdirSync(FOLDER).sort()).toEqual(SPECS.map(spec => `${spec.replace('/', '_')}.json`).sort());
});
