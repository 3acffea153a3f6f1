/**
 * Hostile headers of every architecture: each key of the metadata that is read is missing, of another type, out of range or of another
 * length. A file is rejected with a typed error, or the model that it describes runs.
 */
import { describe, expect, it } from 'vitest';
import { F16 } from '../src/codec/spec.ts';
import { loadEngine, type ModelFile, readModelFile } from '../src/engine/engine.ts';
import { step } from '../src/engine/step.ts';
import { architectures, supportedArchitectures, type Traits } from '../src/model/architectures.ts';
import { type Gguf, type MetadataValue, readGguf } from '../src/model/gguf.ts';
import { bytesSource } from '../src/model/source.ts';
import { createPlan } from '../src/plan/plan.ts';
import { FormatError, UnsupportedError } from '../src/util/errors.ts';
import { typed, writeGguf } from './support/gguf-writer.ts';
import { type TinyOptions, tinyModel } from './support/tiny-model.ts';

const VALUES: readonly (MetadataValue | undefined)[] = [
  ...[undefined, 0, -1, 1, 0.5, 3, 255, 2 ** 16, 2 ** 31, 2 ** 53, -(2 ** 53), 1e-300, 1e300],
  ...[Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, true, false, '', 'x', '\0'.repeat(1000)],
  ...[[], ['x'], ['', ''], [[]], Int32Array.of(), Int32Array.of(-1), Int32Array.of(1, 2, 3)],
  ...[Float32Array.of(Number.NaN), new Uint8Array(10_000), Array<string>(300).fill('')],
];

/** Beside experts that are chosen with biases: a shared one, and a dense layer. */
const EXPERTS: TinyOptions = { layers: 3, denseLayers: 1, selectionBias: true, sharedFfn: 32 };

/** A model whose RoPE is scaled, so that the keys of the scaling are read too. */
const open = (architecture: (typeof supportedArchitectures)[number]): Promise<Gguf> => {
  const scaling = `${architecture}.rope.scaling`;
  const metadata = { [`${scaling}.type`]: 'yarn', [`${scaling}.factor`]: typed('f32', 4) };
  const { experts }: Traits = architectures[architecture];
  const options = experts?.in === 'all' ? EXPERTS : {};
  return readGguf([bytesSource(writeGguf(tinyModel({ architecture, metadata, ...options })))]);
};

/** The keys of a file that are read. */
async function keysRead(gguf: Gguf): Promise<string[]> {
  const keys = new Set<string>();
  const metadata = new Map(gguf.metadata);
  metadata.get = key => {
    keys.add(key);
    return gguf.metadata.get(key);
  };
  await readModelFile({ gguf: { ...gguf, metadata }, paths: [] });
  return [...keys];
}

/** The same file with another value, or without it. */
function withValue(gguf: Gguf, key: string, value: MetadataValue | undefined): Gguf {
  const metadata = new Map(gguf.metadata);
  if (value === undefined) metadata.delete(key);
  else metadata.set(key, value);
  return { ...gguf, metadata };
}

/** The values in `VALUES`, and parts and repetitions of an array. */
function hostileValues(value: MetadataValue | undefined): readonly (MetadataValue | undefined)[] {
  if (typeof value !== 'object') return VALUES;
  return [...VALUES, value.slice(1), value.slice(0, 1), [...value, ...value] as string[]];
}

/** Undefined if the file is rejected, with a typed error. */
async function accepted(gguf: Gguf): Promise<ModelFile | undefined> {
  return readModelFile({ gguf, paths: [] }).catch(error => {
    if (!(error instanceof FormatError || error instanceof UnsupportedError)) throw error;
    return undefined;
  });
}

async function run(file: ModelFile): Promise<void> {
  const { config, tokenizer, template } = file;
  const tokens = tokenizer.encode(template.render([{ role: 'user', content: 'Hello, 世界 1' }])).slice(0, 4);
  const plan = createPlan(F16, { ...config, pageTokens: 16 });
  const engine = await loadEngine(file, { plan, context: 16 }, { device: 'js' });
  const sequence = engine.openSequence(plan, 16);
  let rows = 0;
  const onLogits = (_: unknown, __: number, logits: Float32Array) => {
    rows += Number(logits.every(Number.isFinite));
  };
  await step(engine, [{ sequence, tokens, logits: 'last' }], { onLogits });
  await engine.dispose();
  expect(rows).toBe(1);
}

describe.each(supportedArchitectures)('%s', architecture => {
  it('with hostile metadata is rejected with a typed error, or runs', async () => {
    const gguf = await open(architecture);
    const configs = new Set<string>();
    // Keys of the vocabulary are read alike of all architectures.
    const keys = (await keysRead(gguf)).filter(key => architecture === 'llama' || key.startsWith(architecture));
    for (const key of keys) {
      for (const value of hostileValues(gguf.metadata.get(key))) {
        try {
          const file = await accepted(withValue(gguf, key, value));
          const config = JSON.stringify(file?.config);
          if (file && !configs.has(config)) await run(file);
          configs.add(config);
        } catch (cause) {
          throw new Error(`${key} = ${JSON.stringify(value)?.slice(0, 80)}`, { cause });
        }
      }
    }
  });

  it('with a missing or misshapen tensor is rejected with a typed error', async () => {
    const gguf = await open(architecture);
    for (const [name, tensor] of gguf.tensors) {
      const tensors = new Map(gguf.tensors);
      tensors.delete(name);
      expect(await accepted({ ...gguf, tensors }), name).toBeUndefined();
      for (const shape of [tensor.shape.map(extent => 2 * extent), tensor.shape.slice(1), [...tensor.shape, 2]]) {
        tensors.set(name, { ...tensor, shape });
        expect(await accepted({ ...gguf, tensors }), `${name}: ${shape}`).toBeUndefined();
      }
    }
  });
});
