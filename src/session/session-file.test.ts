/** Sessions come back as they were saved, or not at all. */
import * as crypto from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  chunksOf,
  createSession,
  decodeSession,
  encodeRecords,
  encodeSession,
  expected,
  identity,
  noReader,
  recordsOf,
  smallSession,
} from '../../test/support/small-session.ts';
import { tailCapacity } from '../kernel/visibility.ts';
import { CapacityError, UnsupportedError } from '../util/errors.ts';
import { readSession } from './session-file.ts';
import type { SessionIdentity } from './session-manifest.ts';
import { createSigner } from './session-signature.ts';

const GOLDEN = new URL('../../test/fixtures/session-1.kvsession', import.meta.url);

describe('a session', () => {
  it('is read back, whatever its size and the chunks of the stream', async () => {
    const extra = fc.option(fc.jsonValue({ maxDepth: 2 }), { nil: undefined });
    const { recent } = expected;
    const sizes = [fc.nat(5), fc.nat(tailCapacity(expected)), fc.nat(50), fc.integer({ min: 1, max: 400 })] as const;
    await fc.assert(
      fc.asyncProperty(...sizes, extra, async (leaves, tail, seed, chunkBytes, value) => {
        const session = createSession(leaves, leaves > 0 ? Math.max(recent, tail) : tail, value, seed);
        const read = await decodeSession(await encodeSession(session), { chunkBytes });
        // JSON has no -0.
        expect(read).toEqual({
          ...session,
          extra: value === undefined ? undefined : JSON.parse(JSON.stringify(value)),
        });
      }),
    );
  });

  it('is written leaf by leaf, from any iterable', async () => {
    let alive = 0;
    async function* leaves() {
      for (const leaf of smallSession.leaves) {
        alive++;
        yield leaf;
        alive--;
        expect(alive).toBe(0);
      }
    }
    const bytes = await encodeSession({ ...smallSession, leaves: leaves() });
    expect(bytes).toEqual(await encodeSession(smallSession));
  });

  it('is signed, if the same secret has signed all of its records', async () => {
    const signerOf = (secret: number) => createSigner(crypto, new Uint8Array(32).fill(secret));
    const isSigned = async (bytes: Uint8Array, secret?: number) => {
      const signer = secret === undefined ? undefined : signerOf(secret);
      return (await readSession(chunksOf(bytes), expected, noReader, signer)).isSigned;
    };
    const signed = await encodeSession(smallSession, signerOf(1));
    expect([await isSigned(signed, 1), await isSigned(signed, 2), await isSigned(signed)]).toEqual([
      true,
      false,
      false,
    ]);
    expect(await isSigned(await encodeSession(smallSession), 1)).toBe(false);
    const records = await recordsOf(signed);
    for (const [i, { kind, payload }] of records.entries()) {
      // Another manifest is another session.
      if (kind === 'manifest') continue;
      const changed = payload.map((byte, at) => (at === 3 ? byte ^ 1 : byte));
      const forged = encodeRecords(records.map((one, j) => (i === j ? { ...one, payload: changed } : one)));
      expect(await isSigned(forged, 1)).toBe(false);
    }
  });

  it('hands over its leaves in order, with the manifest', async () => {
    const seen: [number, number][] = [];
    await readSession(chunksOf(await encodeSession(smallSession)), expected, {
      ...noReader,
      async addLeaf(_, index, { leafCount }) {
        seen.push([index, leafCount]);
      },
    });
    expect(seen).toEqual([
      [0, 2],
      [1, 2],
    ]);
  });

  it('keeps payloads aligned to 16 bytes', async () => {
    let offset = 0;
    for (const { payload } of await recordsOf(await encodeSession(smallSession))) {
      expect(offset % 16).toBe(0);
      offset += 48 + payload.length;
    }
  });

  it('is not written with another number of leaves than it claims', async () => {
    const { leaves } = smallSession;
    await expect(encodeSession({ ...smallSession, leaves: leaves.slice(1) })).rejects.toThrow(/bug/);
    await expect(encodeSession({ ...smallSession, leaves: [...leaves, leaves[0]] })).rejects.toThrow(/bug/);
  });

  it('is not written with an identity that could not be read', async () => {
    const session = { ...smallSession, identity: { ...identity, arithmetic: 'GPU\u00ae' } };
    await expect(encodeSession(session)).rejects.toThrow(/bug: the arithmetic/);
  });

  it('with too much JSON is not written', async () => {
    const session = createSession(0, 1, 'x'.repeat(2 ** 24));
    await expect(encodeSession(session)).rejects.toThrow(CapacityError);
  });

  it('passes on an error of its reader and closes the source', async () => {
    let closed = false;
    async function* source() {
      try {
        yield* chunksOf(await encodeSession(smallSession));
      } finally {
        closed = true;
      }
    }
    const addLeaf = () => {
      throw new CapacityError('no room');
    };
    await expect(readSession(source(), expected, { ...noReader, addLeaf })).rejects.toThrow('no room');
    expect(closed).toBe(true);
  });
});

describe('format version 1', () => {
  it('is written and read as the golden file has it', async () => {
    const bytes = await encodeSession(smallSession);
    if (process.env.KVASIR_GOLDEN === 'write') writeFileSync(GOLDEN, bytes);
    expect(existsSync(GOLDEN), 'no golden session; write it with KVASIR_GOLDEN=write').toBe(true);
    const golden = new Uint8Array(readFileSync(GOLDEN));
    expect(bytes, 'the session format changed: saved sessions can no longer be read').toEqual(golden);
    expect(await decodeSession(golden)).toEqual(smallSession);
  });
});

describe('a session of another identity names what differs, both values and what to do', () => {
  const resumedWith = async (other: Partial<SessionIdentity>): Promise<Error> => {
    const limits = { ...expected, identity: { ...identity, ...other } };
    const reading = decodeSession(await encodeSession(smallSession), { limits });
    return reading.then(
      () => expect.unreachable('was read'),
      error => error,
    );
  };

  it.each<[keyof SessionIdentity, string | number, string]>([
    ['model', '99'.repeat(32), 'another model (abababababab, here 999999999999). To resume it, open the model'],
    ['tokenizer', '99'.repeat(32), 'another tokenizer (cdcdcdcdcdcd, here 999999999999). To resume it, open the model'],
    [
      'rope',
      '99'.repeat(32),
      'another RoPE (efefefefefef, here 999999999999). To resume it, load the model with the context it was saved with',
    ],
    ['plan', 'f16', 'another plan (tq4/tq3+sink2 page4 layers2, here f16). To resume it, use the same kv'],
    ['tables', '', 'other profile tables (121212121212, here none). To resume it, use the profile'],
    [
      'arithmetic',
      'webgpu',
      'another device arithmetic (wasm relaxed, here webgpu). To resume it, use the same device',
    ],
    ['format', 4, 'another page format (3, here 4). To resume it, use the Kvasir it was saved with'],
  ])('%s', async (field, value, message) => {
    const error = await resumedWith({ [field]: value });
    expect(error).toBeInstanceOf(UnsupportedError);
    expect(error.message).toMatch(`The session cannot be resumed: it was saved with ${message}`);
    expect(error.message).toMatch(/or start a new conversation with its messages\.$/);
  });

  it('several at once', async () => {
    const { message } = await resumedWith({ model: 'm', tokenizer: 't', plan: 'p', tables: 'implied by these' });
    expect(message).toBe(
      'The session cannot be resumed: it was saved with another model (abababababab, here m), another tokenizer ' +
        '(cdcdcdcdcdcd, here t), another plan (tq4/tq3+sink2 page4 layers2, here p). To resume it, open the model it was ' +
        'saved with, use the same kv; or start a new conversation with its messages.',
    );
  });

  it('long values, where they differ', async () => {
    const layers = (last: string) => [...Array(30).fill('tq4/tq4'), last].join(',');
    const session = { ...smallSession, identity: { ...identity, plan: layers('tq3/tq4') } };
    const limits = { ...expected, identity: { ...identity, plan: layers('f16/f16') } };
    await expect(decodeSession(await encodeSession(session), { limits })).rejects.toThrow(
      'another plan (...tq4,tq4/tq4,tq4/tq4,tq3/tq4, here ...tq4,tq4/tq4,tq4/tq4,f16/f16)',
    );
  });

  it('nothing of it is handed over', async () => {
    let leaves = 0;
    const limits = { ...expected, identity: { ...identity, plan: 'f16' } };
    const reading = readSession(chunksOf(await encodeSession(smallSession)), limits, {
      ...noReader,
      addLeaf() {
        leaves++;
      },
    });
    await expect(reading).rejects.toThrow(UnsupportedError);
    expect(leaves).toBe(0);
  });
});

it('a session longer than the context says so', async () => {
  const limits = { ...expected, maxTokens: 10 };
  await expect(decodeSession(await encodeSession(smallSession), { limits })).rejects.toThrow(
    'The session has 11 tokens, and the context is 10. Open the model with a larger context.',
  );
});
