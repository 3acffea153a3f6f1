/** A small session for tests: pages of 4 tokens, leaves of 32 bytes. */

import {
  type ExpectedSession,
  readSession,
  type Session,
  type SessionContent,
  type SessionReader,
  writeSession,
} from '../../src/session/session-file.ts';
import type { SessionIdentity } from '../../src/session/session-manifest.ts';
import type { Signer } from '../../src/session/session-signature.ts';
import { type CacheRecord, encodeRecord, readRecords } from '../../src/store/record.ts';

export const identity: SessionIdentity = {
  model: 'ab'.repeat(32),
  tokenizer: 'cd'.repeat(32),
  rope: 'ef'.repeat(32),
  plan: 'tq4/tq3+sink2 page4 layers2',
  tables: '12'.repeat(32),
  arithmetic: 'wasm relaxed',
  format: 3,
};

export const expected: ExpectedSession = {
  ...{ identity, pageTokens: 4, sinkTokens: 2, recent: 2, maxTokens: 100, vocab: 1000 },
  ...{ leafBytes: 32, sinkBytes: 16 },
  tailBytes: tokens => 8 * tokens,
  windowBytes: 0,
  windowPages: () => 0,
  isValidLeaf: () => true,
  isValidWindowPage: () => true,
};

export interface SmallSession extends SessionContent {
  leaves: Uint8Array[];
}

/** Of `leafCount` leaves and `tailTokens` more tokens; its bytes are a pattern. */
export function createSession(leafCount: number, tailTokens: number, extra?: unknown, seed = 1): SmallSession {
  const pattern = (length: number, salt: number) => Uint8Array.from({ length }, (_, i) => i * 7 + salt * 31 + seed);
  const { pageTokens, sinkTokens, leafBytes, sinkBytes, tailBytes } = expected;
  return {
    ...{ identity, pageTokens, sinkTokens, leafCount, extra },
    tokens: Int32Array.from(
      { length: leafCount * pageTokens + tailTokens },
      (_, i) => (i * 37 + seed) % expected.vocab,
    ),
    leaves: Array.from({ length: leafCount }, (_, i) => pattern(leafBytes, i)),
    sinks: pattern(sinkBytes, 100),
    tail: pattern(tailBytes(tailTokens), 101),
  };
}

/** Also a chat's messages. */
export const smallSession = createSession(2, 3, { messages: [{ role: 'user', content: 'Hei, Kvasir! é 🍯' }] });

export async function encodeSession(content: SessionContent, signer?: Signer): Promise<Uint8Array<ArrayBuffer>> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of writeSession(content, signer)) chunks.push(chunk);
  return new Uint8Array(Buffer.concat(chunks));
}

export async function* chunksOf(bytes: Uint8Array, size = 64): AsyncGenerator<Uint8Array, void> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}

/** Takes blocks, and forgets them. */
export const noReader: SessionReader = { addLeaf() {}, addWindowPage() {} };

/** With the leaves in an array. */
export async function decodeSession(
  bytes: Uint8Array,
  { limits = expected, chunkBytes = 64 }: { limits?: ExpectedSession; chunkBytes?: number } = {},
): Promise<Session & { leaves: Uint8Array[] }> {
  const leaves: Uint8Array[] = [];
  const { isSigned: _, ...session } = await readSession(chunksOf(bytes, chunkBytes), limits, {
    ...noReader,
    addLeaf(leaf, index) {
      leaves[index] = leaf;
    },
  });
  return { ...session, leaves };
}

export async function recordsOf(bytes: Uint8Array): Promise<CacheRecord[]> {
  const records: CacheRecord[] = [];
  for await (const record of readRecords(chunksOf(bytes), { maxBytes: () => 1e6 })) records.push(record);
  return records;
}

/** With valid checksums. */
export const encodeRecords = (records: readonly CacheRecord[]): Uint8Array<ArrayBuffer> =>
  new Uint8Array(Buffer.concat(records.flatMap(record => [...encodeRecord(record)])));
