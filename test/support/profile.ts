/** A small profile for tests, and ways to damage its file. */
import { createRandom, normals } from '../../src/codec/parts/random.ts';
import { encodeProfile, type ProfileContent } from '../../src/plan/profile.ts';

const random = createRandom(1);

export const content: ProfileContent = {
  fingerprint: 'ab'.repeat(32),
  shape: { layers: 2, kvHeads: 1, headDim: 16, ropeFrequencies: [1, 0.1, 1 / 3] },
  provenance: {
    model: 'test.gguf',
    tokens: 512,
    context: 64,
    samples: 100,
    seed: 7,
    text: 'cd'.repeat(32),
    sources: [
      { name: 'prose', tokens: 384 },
      { name: 'notes.txt', tokens: 128 },
    ],
    codecs: ['tq4-c'],
    version: '0.1.0',
  },
  learned: [
    { key: { mean: normals(random, 16), book: normals(random, 5001) }, value: {} },
    { key: { mean: normals(random, 16) }, value: { far: normals(random, 6000).map(x => 1e5 * x) } },
  ],
  sensitivities: {
    'tq2-c': [
      { key: 0.01, value: 0.002 },
      { key: 1e-7, value: 0.3 },
    ],
  },
  measurements: [{ kv: 'mead2', bits: 2, kld: 0.02 }],
};

/** The content with short arrays only. */
export const smallContent: ProfileContent = {
  ...content,
  learned: [
    { key: { mean: normals(random, 16) }, value: {} },
    { key: {}, value: { book: normals(random, 40) } },
  ],
};

/** Nothing learned, but plans measured: enough to choose among codecs that learn nothing. */
export const measuredContent = ({
  shape,
  fingerprint,
}: Pick<ProfileContent, 'shape' | 'fingerprint'>): ProfileContent => ({
  ...content,
  fingerprint,
  shape,
  learned: Array.from({ length: shape.layers }, () => ({ key: {}, value: {} })),
  sensitivities: {},
  measurements: [
    { kv: 'tq4', bits: 4.5, kld: 0.25 },
    { kv: 'kivi2g32', bits: 3, kld: 0.0125 },
    { kv: 'tq1', bits: 1.5, kld: 0.5 },
  ],
});

/** The file with a changed header, the same arrays, and a valid checksum. */
export async function withHeader(change: (header: Record<string, never>) => unknown, from = content) {
  const bytes = await encodeProfile(from);
  const length = new DataView(bytes.buffer).getUint32(12, true);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(16, 16 + length)));
  const changed = change(header) ?? header;
  return withHeaderText(typeof changed === 'string' ? changed : JSON.stringify(changed), bytes);
}

export async function withHeaderText(text: string, bytes: Uint8Array<ArrayBuffer>) {
  const length = new DataView(bytes.buffer).getUint32(12, true);
  const json = new TextEncoder().encode(text);
  const padded = Math.ceil(json.length / 4) * 4;
  const out = new Uint8Array(bytes.length - length + padded).fill(0x20);
  out.set(bytes.subarray(0, 16));
  new DataView(out.buffer).setUint32(12, padded, true);
  out.set(json, 16);
  out.set(bytes.subarray(16 + length), 16 + padded);
  return withChecksum(out);
}

/** Replaces the checksum by a valid one. */
export async function withChecksum(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  const hash = await crypto.subtle.digest('SHA-256', bytes.subarray(0, bytes.length - 32));
  bytes.set(new Uint8Array(hash), bytes.length - 32);
  return bytes;
}
