import { rm } from 'node:fs/promises';
import { dirname } from 'node:path';
import { describe, expect, it } from 'vitest';
import { arrayOf, nested, splitGguf, typed, writeGguf, writeTempModel } from '../../test/support/gguf-writer.ts';
import { describeWithFile, smolModel } from '../../test/support/shared.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { FormatError, InputError, ShapeError } from '../util/errors.ts';
import { openGguf, readGguf, readTensorAsFloat32, readTensorInto, requireTensor } from './gguf.ts';
import { type ByteSource, blobSource, bytesSource } from './source.ts';

const sequence = (length: number) => Uint8Array.from({ length }, (_, i) => i & 255);

describe('a GGUF file', () => {
  it('parses every type of metadata', async () => {
    const bytes = writeGguf({
      metadata: {
        u8: typed('u8', 200),
        i8: typed('i8', -3),
        u16: typed('u16', 60000),
        i16: typed('i16', -30000),
        u32: typed('u32', 4e9),
        i32: typed('i32', -2e9),
        f32: typed('f32', 0.5),
        f64: typed('f64', Math.PI),
        u64: typed('u64', 2n ** 53n - 1n),
        i64: typed('i64', -(2n ** 53n) + 1n),
        yes: true,
        no: false,
        text: 'Kvasir — 한국어 \u0000 end',
        long: 'x'.repeat(300_000),
        words: ['\ufeff', '', 'three', 'é'],
        numbers: arrayOf('i32', [1, -2, 3]),
        floats: arrayOf('f32', [1.5, -2.5]),
        big: arrayOf('u64', [1, 2 ** 40]),
        bools: arrayOf('bool', [true, false]),
        none: arrayOf('string', []),
        deep: nested(arrayOf('u8', [1]), nested(arrayOf('string', ['a', 'b']))),
      },
      tensors: [],
    });
    const { metadata } = await readGguf([bytesSource(bytes)]);
    expect(Object.fromEntries(metadata)).toEqual({
      u8: 200,
      i8: -3,
      u16: 60000,
      i16: -30000,
      u32: 4e9,
      i32: -2e9,
      f32: 0.5,
      f64: Math.PI,
      u64: 2 ** 53 - 1,
      i64: -(2 ** 53) + 1,
      yes: true,
      no: false,
      text: 'Kvasir — 한국어 \u0000 end',
      long: 'x'.repeat(300_000),
      words: ['\ufeff', '', 'three', 'é'],
      numbers: Int32Array.of(1, -2, 3),
      floats: Float32Array.of(1.5, -2.5),
      big: Float64Array.of(1, 2 ** 40),
      bools: Uint8Array.of(1, 0),
      none: [],
      deep: [Uint8Array.of(1), [['a', 'b']]],
    });
  });

  it.each([2, 3])('version %i: locates tensors at any alignment', async version => {
    for (const alignment of [1, 8, 32, 4096]) {
      const bytes = writeGguf({
        version,
        alignment,
        metadata: { name: 'x' },
        tensors: [
          { name: 'a', type: 'F32', shape: [3], data: sequence(12) },
          { name: 'b', type: 'Q4_0', shape: [64, 2, 1, 1], data: sequence(72) },
        ],
      });
      const gguf = await readGguf([bytesSource(bytes)]);
      const b = requireTensor(gguf, 'b');
      expect(b).toMatchObject({ type: 'Q4_0', shape: [64, 2, 1, 1], bytes: 72, shard: 0 });
      expect(b.offset % alignment).toBe(0);
      const into = new Uint8Array(72);
      await readTensorInto(gguf, b, into);
      expect(into).toEqual(sequence(72));
      const part = new Uint8Array(20);
      await readTensorInto(gguf, b, part, 52);
      expect(part).toEqual(sequence(72).slice(52));
      await expect(readTensorInto(gguf, b, part, 53)).rejects.toThrow(ShapeError);
      await expect(readTensorInto(gguf, b, new Uint8Array(73))).rejects.toThrow(ShapeError);
      expect(await readTensorAsFloat32(gguf, requireTensor(gguf, 'a'))).toEqual(new Float32Array(sequence(12).buffer));
      expect(() => requireTensor(gguf, 'c')).toThrow(/no tensor "c"/);
    }
  });

  it('reads a header larger than the first read in few reads', async () => {
    const tokens = Array.from({ length: 100_000 }, (_, i) => `token number ${i}`);
    const inner = bytesSource(writeGguf({ metadata: { tokens }, tensors: [] }));
    let reads = 0;
    const counting: ByteSource = {
      ...inner,
      readInto: (offset, into) => {
        reads++;
        return inner.readInto(offset, into);
      },
    };
    const { metadata } = await readGguf([counting]);
    expect(metadata.get('tokens')).toEqual(tokens);
    expect(reads).toBeLessThanOrEqual(4);
  });
});

describe('a split model', () => {
  const spec = tinyModel();

  it('opens from the path of its first file, or from Blobs in any order', async () => {
    const path = await writeTempModel(spec, { shards: 3 });
    const blobs = splitGguf(spec, 3).map(bytes => new Blob([bytes]));
    const whole = await readGguf([bytesSource(writeGguf(spec))]);
    for (const gguf of [
      await openGguf(path),
      await readGguf([blobs[2], blobs[0], blobs[1]].map(blob => blobSource(blob))),
    ]) {
      expect(gguf.shards.length).toBe(3);
      expect([...gguf.tensors.keys()]).toEqual([...whole.tensors.keys()]);
      expect(new Set([...gguf.tensors.values()].map(t => t.shard))).toEqual(new Set([0, 1, 2]));
      for (const name of whole.tensors.keys())
        expect(await readTensorAsFloat32(gguf, requireTensor(gguf, name))).toEqual(
          await readTensorAsFloat32(whole, requireTensor(whole, name)),
        );
      await gguf.close();
    }
    await rm(dirname(path), { recursive: true });
  });

  it('reports a part that is missing, misnamed or of another model', async () => {
    const path = await writeTempModel(spec, { shards: 3 });
    const second = path.replace('00001-of', '00002-of');
    await expect(openGguf(second)).rejects.toThrow(/Pass the path of the first/);
    await rm(second);
    await expect(openGguf(path)).rejects.toThrow(/00002-of-00003\.gguf belongs to/);
    await expect(openGguf(path)).rejects.toThrow(InputError);
    await rm(dirname(path), { recursive: true });

    const [a, b, c] = splitGguf(spec, 3).map(bytes => bytesSource(bytes));
    await expect(readGguf([a, b])).rejects.toThrow(/Pass all of them/);
    await expect(readGguf([a, b, b])).rejects.toThrow(/Part 3 of 3 is missing/);
    await expect(readGguf([])).rejects.toThrow(InputError);
    const [, , other] = splitGguf(tinyModel({ layers: 3 }), 3).map(bytes => bytesSource(bytes));
    await expect(readGguf([a, b, other])).rejects.toThrow(FormatError);
    await expect(readGguf([a, b, c])).resolves.toBeDefined();
  });

  it.each([
    ['too many parts', 60000, 0],
    ['a part number past the count', 3, 3],
    ['a count that is a string', 'three', 0],
    ['a fractional part number', 2, 0.5],
  ])('rejects %s', async (_, count, no) => {
    const bytes = writeGguf({ metadata: { 'split.count': count, 'split.no': no }, tensors: [] });
    await expect(readGguf([bytesSource(bytes)])).rejects.toThrow(FormatError);
  });

  it('closes its files on failure', async () => {
    const closed: string[] = [];
    const sources = ['a', 'b'].map(name => ({
      ...bytesSource(sequence(100), name),
      close: async () => void closed.push(name),
    }));
    await expect(readGguf(sources)).rejects.toThrow(FormatError);
    expect(closed).toEqual(['a', 'b']);
  });
});

describeWithFile(smolModel, 'SmolLM2 135M', path => {
  it('parses to the same values as in the Python package gguf', async () => {
    const gguf = await openGguf(path);
    expect(gguf.metadata.size).toBe(33);
    expect(gguf.tensors.size).toBe(272);
    expect(gguf.metadata.get('general.name')).toBe('Smollm2 135M 8k Lc100K Mix1 Ep2');
    expect(gguf.metadata.get('tokenizer.ggml.tokens')).toHaveLength(49152);
    expect(gguf.metadata.get('tokenizer.ggml.merges')).toHaveLength(48900);
    expect(gguf.metadata.get('tokenizer.ggml.token_type')).toBeInstanceOf(Int32Array);
    expect(requireTensor(gguf, 'token_embd.weight')).toEqual({
      name: 'token_embd.weight',
      type: 'Q8_0',
      shape: [576, 49152],
      bytes: 30081024,
      offset: 1785664,
      shard: 0,
    });
    expect(requireTensor(gguf, 'blk.0.attn_k.weight')).toMatchObject({ type: 'Q4_1', bytes: 69120, offset: 33530176 });
    const norm = await readTensorAsFloat32(gguf, requireTensor(gguf, 'output_norm.weight'));
    expect(norm.every(x => Number.isFinite(x) && Math.abs(x) < 100)).toBe(true);
    await gguf.close();
  });
});
