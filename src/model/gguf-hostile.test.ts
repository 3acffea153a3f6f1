/** Untrusted model files: hand-written attacks, then ten thousand seeded mutations of a valid file. */
import { describe, expect, it } from 'vitest';
import { cpuTime } from '../../test/support/cpu-time.ts';
import { arrayOf, ByteWriter, type GgufSpec, nested, typed, writeGguf } from '../../test/support/gguf-writer.ts';
import { type Random, seeded } from '../../test/support/random.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { FormatError, KvasirError, UnsupportedError } from '../util/errors.ts';
import { readConfig } from './config.ts';
import { readGguf } from './gguf.ts';
import { type ByteSource, bytesSource } from './source.ts';

/** The most that rejecting a file may cost. */
const budget = { milliseconds: 1000, bytesRead: 64 * 2 ** 20, heap: 100 * 2 ** 20 };

const magic = new TextEncoder().encode('GGUF');
const start = (tensors: number | bigint, pairs: number | bigint) =>
  new ByteWriter().bytes(magic).u32(3).u64(tensors).u64(pairs);
const pair = (key: string, type: number) => start(0, 1).text(key).u32(type);
const arrayPair = (type: number, count: number | bigint) => pair('a', 9).u32(type).u64(count);
const oneTensor = (tensor: Partial<GgufSpec['tensors'][number]>, more?: Partial<GgufSpec>) =>
  writeGguf({
    metadata: {},
    tensors: [{ name: 'a', type: 'F32', shape: [8], data: new Uint8Array(32), ...tensor }],
    ...more,
  });
const data = (length: number) => new Uint8Array(length);
const padded = (writer: ByteWriter, length = 4096) => writer.bytes(data(length)).finish();

/** A file that starts with `text`, one byte per character. */
const foreign = (text: string) => padded(new ByteWriter().bytes(Buffer.from(text, 'latin1')));

const cases: [title: string, bytes: Uint8Array, error: RegExp, kind?: typeof UnsupportedError][] = [
  // The start.
  ['an empty file', data(0), /is empty/],
  ['three bytes', magic.slice(0, 3), /has only 3 bytes/],
  ['the magic alone', magic, /has only 4 bytes/],
  ['a wrong magic', foreign('GGUX\x03\0\0\0'), /not a GGUF file \(it starts with "GGUX/],
  ['a short text', new TextEncoder().encode('hi\n'), /not a GGUF file \(it starts with "hi\\n"\)/],
  ['a magic with its bytes swapped', foreign('FUGG\x03\0\0\0'), /swapped byte order/],
  ['zeros', data(4096), /not a GGUF file: it is all zeros/],
  ['a Git LFS pointer', new TextEncoder().encode('version https://git-lfs.github.com/spec/v1\n'), /git lfs pull/],
  ['a file from before GGUF', padded(new ByteWriter().u32(0x67676a74)), /before GGUF/, UnsupportedError],
  ['safetensors', foreign('\x40\x01\0\0\0\0\0\0{"__metadata__":{'), /safetensors.*convert/, UnsupportedError],
  ['a PyTorch checkpoint', foreign('PK\x03\x04'), /PyTorch.*convert/, UnsupportedError],
  ['an old PyTorch checkpoint', foreign('\x80\x02\x8a'), /PyTorch.*convert/, UnsupportedError],
  ['a web page', foreign('\n<!DOCTYPE html><html>'), /a web page.*the file itself/],
  ['JSON', foreign('{ "architectures": ['), /JSON/],
  ['a compressed file', foreign('\x1f\x8b\x08'), /Unpack it/],
  ['version 0', writeGguf({ version: 0, metadata: {}, tensors: [] }), /version 0/],
  ['version 1', writeGguf({ version: 1, metadata: {}, tensors: [] }), /obsolete/, UnsupportedError],
  ['version 4', writeGguf({ version: 4, metadata: {}, tensors: [] }), /version 4/, UnsupportedError],
  ['big endian', writeGguf({ version: 0x03000000, metadata: {}, tensors: [] }), /big endian/, UnsupportedError],
  ['no counts', new ByteWriter().bytes(magic).u32(3).finish(), /0 remain/],
  ['2^63 tensors', padded(start(2n ** 63n, 0)), /2\^53/],
  ['2^40 tensors', padded(start(2n ** 40n, 0)), /declares 1099511627776 tensors/],
  ['more tensors than bytes', padded(start(60000, 0)), /more than fit into its \d+ bytes/],
  ['2^64 - 1 pairs', padded(start(0, 2n ** 64n - 1n)), /2\^53/],
  ['more pairs than bytes', padded(start(0, 60000)), /more than fit into its \d+ bytes/],
  // Metadata.
  ['a key longer than the file', padded(start(0, 1).u64(60000)), /60000 bytes, but/],
  ['a key of 2^62 bytes', padded(start(0, 1).u64(2n ** 62n)), /2\^53/],
  ['a key over the limit', padded(start(0, 1).u64(70000), 80000), /65535 allowed/],
  ['an empty key', padded(start(0, 1).text('')), /empty/],
  ['a key that is not UTF-8', padded(start(0, 1).u64(2).bytes(Uint8Array.of(0xff, 0xfe))), /UTF-8/],
  [
    'a duplicate key',
    writeGguf({
      metadata: [
        ['a', 1],
        ['a', 2],
      ],
      tensors: [],
    }),
    /"a" appears twice/,
  ],
  ['a value type that does not exist', padded(pair('a', 13)), /type 13/],
  ['a value type of 2^32 - 1', padded(pair('a', 2 ** 32 - 1)), /type 4294967295/],
  ['a value cut short', pair('a', 10).u32(1).finish(), /4 remain/],
  ['a bool of 2', padded(pair('a', 7).number('u8', 2)), /neither true nor false/],
  ['a u64 beyond 2^53', writeGguf({ metadata: { a: typed('u64', 2n ** 53n) }, tensors: [] }), /2\^53/],
  ['an i64 below -2^53', writeGguf({ metadata: { a: typed('i64', -(2n ** 60n)) }, tensors: [] }), /2\^53/],
  ['an array of u64 beyond 2^53', writeGguf({ metadata: { a: arrayOf('u64', [2n ** 60n]) }, tensors: [] }), /2\^53/],
  ['a string longer than the file', padded(pair('a', 8).u64(10_000)), /10000 bytes, but/],
  ['a string of 2^40 bytes', padded(pair('a', 8).u64(2n ** 40n)), /allowed/],
  ['a string that is not UTF-8', padded(pair('a', 8).u64(1).bytes(Uint8Array.of(0x80))), /UTF-8/],
  ['an array of 2^61 numbers', padded(arrayPair(6, 2n ** 61n)), /2\^53/],
  ['an array of 2^50 numbers', padded(arrayPair(6, 2n ** 50n)), /elements of metadata "a"/],
  ['an array longer than the file', padded(arrayPair(6, 2000)), /takes 8000 bytes/],
  ['an array of more strings than bytes', padded(arrayPair(8, 600)), /more than fit into its \d+ bytes/],
  ['an array of more arrays than bytes', padded(arrayPair(9, 400)), /more than fit into its \d+ bytes/],
  ['an array of a type that does not exist', padded(arrayPair(99, 1)), /type 99/],
  [
    'arrays nested five deep',
    writeGguf({ metadata: { a: nested(nested(nested(nested(arrayOf('u8', []))))) }, tensors: [] }),
    /deep/,
  ],
  [
    'arrays nested a thousand deep',
    padded(Array.from({ length: 1000 }).reduce<ByteWriter>(w => w.u32(9).u64(1), pair('a', 9))),
    /deep/,
  ],
  // Tensors.
  ['an alignment of 0', writeGguf({ alignment: 0, metadata: {}, tensors: [] }), /power of two/],
  ['an alignment of 24', writeGguf({ alignment: 24, metadata: {}, tensors: [] }), /power of two/],
  ['an alignment of 2^31', padded(pair('general.alignment', 4).u32(2 ** 31)), /power of two/],
  [
    'an alignment that is a string',
    writeGguf({ metadata: { 'general.alignment': '32' }, tensors: [] }),
    /power of two/,
  ],
  [
    'a negative alignment',
    writeGguf({ metadata: { 'general.alignment': typed('i32', -32) }, tensors: [] }),
    /power of two/,
  ],
  ['a tensor without a name', oneTensor({ name: '' }), /no name/],
  ['a tensor name over the limit', oneTensor({ name: 'n'.repeat(300) }), /256 allowed/],
  [
    'a duplicate tensor',
    writeGguf({ metadata: {}, tensors: [0, 1].map(() => ({ name: 'a', type: 'F32', shape: [8], data: data(32) })) }),
    /appears twice/,
  ],
  ['a tensor of 0 dimensions', oneTensor({ shape: [] }), /0 dimensions/],
  ['a tensor of 5 dimensions', oneTensor({ shape: [1, 1, 1, 1, 8] }), /5 dimensions/],
  [
    'a tensor of 2^32 - 1 dimensions',
    padded(
      start(1, 0)
        .text('a')
        .u32(2 ** 32 - 1),
    ),
    /4294967295 dimensions/,
  ],
  ['a dimension of zero', oneTensor({ shape: [8, 0] }), /is zero/],
  ['a negative dimension', oneTensor({ shape: [2n ** 64n - 8n] }), /2\^53/],
  ['dimensions whose product wraps to 8', oneTensor({ shape: [2n ** 33n, 2n ** 31n, 8] }), /more values than the file/],
  [
    'dimensions whose product is past 2^53',
    oneTensor({ shape: [2 ** 20, 2 ** 20, 2 ** 20, 2 ** 20] }),
    /more values than the file/,
  ],
  [
    'a row that is not a multiple of the block size',
    oneTensor({ type: 'Q4_0', shape: [33], data: data(18) }),
    /blocks of 32/,
  ],
  [
    'a row that is not a multiple of the superblock size',
    oneTensor({ type: 'Q4_K', shape: [128, 2], data: data(144) }),
    /blocks of 256/,
  ],
  ['a weight type that does not exist', oneTensor({ type: 777 }), /weight type 777/],
  ['an unsupported weight type', oneTensor({ type: 16 }), /IQ2_XXS/, UnsupportedError],
  ['a weight type of 2^32 - 1', oneTensor({ type: 2 ** 32 - 1 }), /weight type 4294967295/],
  ['an offset that is not aligned', oneTensor({ offset: 4 }), /multiple of 32/],
  ['an offset past the end', oneTensor({ offset: 4096 }), /but the file has/],
  ['an offset of 2^53 - 32', oneTensor({ offset: 2n ** 53n - 32n }), /but the file has/],
  ['an offset of 2^64 - 32', oneTensor({ offset: 2n ** 64n - 32n }), /2\^53/],
  ['too little data', oneTensor({}).slice(0, -1), /but the file has/],
  ['no data at all', oneTensor({}).slice(0, -32), /but the file has/],
  ['a second tensor without a description', oneTensor({}, { claims: { tensors: 2 } }), /./],
  ['more pairs than exist', writeGguf({ metadata: { a: 1 }, tensors: [], claims: { pairs: 2 } }), /./],
];

/** Parses a file and measures the cost. */
async function parseMeasured(source: ByteSource) {
  let bytesRead = 0;
  const counted: ByteSource = {
    ...source,
    readInto: (offset, into) => {
      bytesRead += into.length;
      return source.readInto(offset, into);
    },
  };
  const began = cpuTime();
  const error = await readGguf([counted]).then(
    () => undefined,
    error => error,
  );
  return { error, bytesRead, milliseconds: cpuTime() - began };
}

/** Strings of two letters, which take the most memory per byte of the file. */
function shortStrings(count: number): Uint8Array {
  const bytes = data(count * 10);
  for (let i = 0; i < count; i++) bytes.set([2, 0, 0, 0, 0, 0, 0, 0, 97 + (i % 26), 97 + ((i >> 5) % 26)], i * 10);
  return bytes;
}

describe('a hostile file', () => {
  it('is tested in many variants', () => expect(cases.length).toBeGreaterThanOrEqual(33));

  it.each(cases)('%s', async (_, bytes, message, kind = FormatError) => {
    const { error, milliseconds } = await parseMeasured(bytesSource(bytes, 'model.gguf'));
    expect(error).toBeInstanceOf(kind);
    expect(error.message).toMatch(/^model\.gguf(: | is | has )/);
    // A file of another format is not called damaged.
    if (error.message.includes('not a GGUF')) expect(error.message).not.toMatch(/damaged/);
    expect(error.message).toMatch(message);
    expect(milliseconds).toBeLessThan(budget.milliseconds);
  });

  // A sparse file of any size costs nothing, so a count that fits the file size can still be hostile.
  const fifteenMegabytes = 15 * 2 ** 20;
  const texts = start(0, 100);
  for (let i = 0; i < 8; i++) texts.text(`k${i}`).u32(8).u64(fifteenMegabytes).bytes(data(fifteenMegabytes));
  const endless: [title: string, writer: ByteWriter, rejected?: boolean][] = [
    ['of the maximum number of empty strings', arrayPair(8, 2 ** 20), false],
    ['of the maximum number of short strings', arrayPair(8, 2 ** 20).bytes(shortStrings(2 ** 20)), false],
    ['of too many strings', arrayPair(8, 2 ** 36)],
    ['of too many numbers', arrayPair(12, 2 ** 36)],
    ['of the maximum number of empty arrays', arrayPair(9, 2 ** 12), false],
    ['of too many arrays', arrayPair(9, 2 ** 21)],
    ['of one string', pair('a', 8).u64(2 ** 36)],
    ['of long strings', texts],
    ['of pairs', start(0, 2 ** 16)],
    ['of tensors', start(2 ** 16, 0)],
  ];
  it.each(endless)('of a terabyte %s is handled within the budget', async (_, writer, rejected = true) => {
    const head = writer.finish();
    const source: ByteSource = {
      ...bytesSource(head, 'model.gguf'),
      size: 2 ** 40,
      readInto: async (offset, into) => into.set(head.subarray(offset, offset + into.length)),
    };
    const heap = process.memoryUsage().heapUsed;
    const { error, milliseconds, bytesRead } = await parseMeasured(source);
    if (rejected) expect(error).toBeInstanceOf(FormatError);
    else expect(error).toBeUndefined();
    expect(bytesRead).toBeLessThanOrEqual(budget.bytesRead);
    expect(process.memoryUsage().heapUsed - heap).toBeLessThan(budget.heap);
    expect(milliseconds).toBeLessThan(budget.milliseconds);
  });
});

describe('mutations', () => {
  const mutants = 10_000;
  const valid = writeGguf(
    tinyModel({ layers: 1, width: 8, heads: 2, kvHeads: 1, ffn: 8, vocab: 12, ropeFactors: [1, 2] }),
  );

  it(`${mutants} mutants parse or fail with a typed error`, async () => {
    const random = seeded(2026);
    const { tensors } = await readGguf([bytesSource(valid)]);
    const header = tensors.get('token_embd.weight')!.offset;
    const outcomes = { parsed: 0, rejected: 0, slowest: 0 };
    for (let i = 0; i < mutants; i++) {
      const bytes = mutate(valid, header, random);
      const began = cpuTime();
      try {
        const gguf = await readGguf([bytesSource(bytes)]);
        readConfig(gguf);
        outcomes.parsed++;
      } catch (error) {
        if (!(error instanceof KvasirError)) throw new Error(`mutant ${i} threw ${error}`, { cause: error });
        outcomes.rejected++;
      }
      outcomes.slowest = Math.max(outcomes.slowest, cpuTime() - began);
    }
    expect(outcomes.slowest).toBeLessThan(budget.milliseconds);
    // Both must occur, or the mutations test nothing.
    expect(outcomes.parsed).toBeGreaterThan(100);
    expect(outcomes.rejected).toBeGreaterThan(1000);
  });
});

const extremes = [
  0n,
  1n,
  2n ** 31n - 1n,
  2n ** 31n,
  2n ** 32n - 1n,
  2n ** 53n,
  2n ** 63n - 1n,
  2n ** 63n,
  2n ** 64n - 1n,
];

/** One to three changes in the header: a flipped bit, a random byte, an extreme number, a moved range; or truncation. */
function mutate(valid: Uint8Array<ArrayBuffer>, header: number, random: Random): Uint8Array<ArrayBuffer> {
  let bytes = valid.slice();
  for (let changes = 1 + random.below(3); changes > 0; changes--) {
    const at = random.below(Math.min(header, bytes.length));
    const kind = random.below(6);
    if (kind === 0) bytes[at] ^= 1 << random.below(8);
    else if (kind === 1) bytes[at] = random.below(256);
    else if (kind === 2) splice(bytes, at, BigUint64Array.of(extremes[random.below(extremes.length)]), 8);
    else if (kind === 3) splice(bytes, at, BigUint64Array.of(extremes[random.below(extremes.length)]), 4);
    else if (kind === 4) bytes.copyWithin(at, random.below(bytes.length), random.below(bytes.length));
    else bytes = bytes.slice(0, random.below(4) === 0 ? at : Math.max(0, bytes.length - random.below(64)));
    if (bytes.length === 0) return bytes;
  }
  return bytes;
}

function splice(bytes: Uint8Array, at: number, value: BigUint64Array<ArrayBuffer>, length: number): void {
  bytes.set(new Uint8Array(value.buffer, 0, Math.min(length, bytes.length - at)), at);
}
