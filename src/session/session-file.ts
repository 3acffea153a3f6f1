/**
 * Session files: a conversation's cache and what it belongs to, in records (record.ts):
 *
 *   manifest   identity, token ids and JSON of the caller (session-manifest.ts)    key: root
 *   leaf ...   the packed bytes of each leaf, in order                             key: of the leaf
 *   window ... those of its layers with a window, for the last leaves               key: of the leaf
 *   sinks      f16 keys and values of the first tokens                             key: child of the root by their ids
 *   tail       f16 keys and values of the tokens after the last leaf               key: child of the last leaf by their ids
 *   hmac       signature of the records before it (session-signature.ts), if any    key: root
 *
 * The keys are those of leaf-key.ts with an empty salt. A reader computes them from its own identity and the token ids,
 * so a leaf of another conversation, model or place in the file is refused.
 */

import { tailCapacity } from '../kernel/visibility.ts';
import { childKey, type LeafKey, leafKeys, rootKey } from '../store/leaf-key.ts';
import {
  type CacheRecord,
  type Check,
  createRecordCheck,
  encodeRecord,
  type RecordKind,
  readRecords,
} from '../store/record.ts';
import { assert } from '../util/errors.ts';
import {
  decodeManifest,
  encodeManifest,
  type ManifestLimits,
  maxManifestBytes,
  type SessionManifest,
} from './session-manifest.ts';
import { isSameSignature, SIGNATURE_BYTES, type Signer } from './session-signature.ts';

export interface Session extends SessionManifest {
  sinks: Uint8Array;
  tail: Uint8Array;
}

/** A session to write. Its leaves are read one by one, so they need not be in memory together. */
export interface SessionContent extends Session {
  leaves: Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
  /** Of the last leaves. Default: none. */
  windowPages?: Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
}

/** What a reader accepts: the identity, the context and the size of every record. */
export interface ExpectedSession extends ManifestLimits {
  leafBytes: number;
  /** Bytes of a window page, and how many of the last leaves have one. */
  windowBytes: number;
  windowPages(leafCount: number): number;
  sinkBytes: number;
  /** Bytes of a tail that holds this many tokens. */
  tailBytes(tokens: number): number;
  /** Whether devices can read it safely: `isValidLeaf` of leaf.ts. */
  isValidLeaf(leaf: Uint8Array): boolean;
  isValidWindowPage(page: Uint8Array): boolean;
}

/** Receives blocks in order. Each is verified, but the file is so only when `readSession` has returned. */
export interface SessionReader {
  addLeaf(leaf: Uint8Array, index: number, manifest: SessionManifest): void | Promise<void>;
  /** The window page of the leaf with this index. */
  addWindowPage(page: Uint8Array, index: number): void | Promise<void>;
}

/** `signer`: signs it. */
export async function* writeSession(content: SessionContent, signer?: Signer): AsyncGenerator<Uint8Array, void> {
  const { leaves, windowPages = [], sinks, tail, ...manifest } = content;
  const keys = sessionKeys(manifest);
  const encode = (record: CacheRecord) => {
    signer?.add(record);
    return encodeRecord(record);
  };
  yield* encode({ kind: 'manifest', key: keys.root, payload: encodeManifest(manifest) });
  let written = 0;
  for await (const leaf of leaves) {
    assert(written < manifest.leafCount, `a session of ${manifest.leafCount} leaves has more`);
    yield* encode({ kind: 'leaf', key: keys.leaves[written++], payload: leaf });
  }
  assert(written === manifest.leafCount, `a session of ${manifest.leafCount} leaves has only ${written}`);
  const pages: Uint8Array[] = [];
  for await (const page of windowPages) pages.push(page);
  for (const [i, payload] of pages.entries())
    yield* encode({ kind: 'window', key: keys.leaves[written - pages.length + i], payload });
  yield* encode({ kind: 'sinks', key: keys.sinks, payload: sinks });
  yield* encode({ kind: 'tail', key: keys.tail, payload: tail });
  if (signer) yield* encodeRecord({ kind: 'hmac', key: keys.root, payload: signer.digest() });
}

/**
 * Reads a session and verifies all of it. If it throws, the blocks that the reader has received must be discarded.
 * `isSigned`: it has the signature that this signer gives it.
 */
export async function readSession(
  source: AsyncIterable<Uint8Array>,
  expected: ExpectedSession,
  { addLeaf, addWindowPage }: SessionReader,
  signer?: Signer,
): Promise<Session & { isSigned: boolean }> {
  const name = 'The session';
  const maxBytes: Record<RecordKind, number> = {
    manifest: maxManifestBytes(expected.maxTokens),
    leaf: expected.leafBytes,
    window: expected.windowBytes,
    sinks: expected.sinkBytes,
    tail: expected.tailBytes(tailCapacity(expected)),
    hmac: SIGNATURE_BYTES,
  };
  const records = readRecords(source, { name, maxBytes: kind => maxBytes[kind] });
  const check: Check = createRecordCheck(name);
  const next = async (what: string, kind: RecordKind) => {
    const { value: record } = await records.next();
    check(record !== undefined, `it ends before its ${what}`);
    check(record.kind === kind, `it has a ${record.kind} record in place of its ${what}`);
    signer?.add(record);
    return record;
  };
  const nextPayload = async (what: string, kind: RecordKind, key: LeafKey, bytes: number) => {
    const record = await next(what, kind);
    check(sameKey(record.key, key), `its ${what} does not belong to its tokens`);
    check(
      record.payload.length === bytes,
      `there are ${record.payload.length} bytes in its ${what} instead of ${bytes}`,
    );
    return record.payload;
  };
  try {
    const first = await next('manifest', 'manifest');
    const manifest = decodeManifest(first.payload, expected, check);
    const { tokens, leafCount, pageTokens } = manifest;
    const keys = sessionKeys(manifest);
    check(sameKey(first.key, keys.root), 'its manifest does not have the key of its identity');
    for (let i = 0; i < leafCount; i++) {
      const leaf = await nextPayload(`leaf ${i}`, 'leaf', keys.leaves[i], expected.leafBytes);
      check(expected.isValidLeaf(leaf), `its leaf ${i} has lists that do not fit into it`);
      await addLeaf(leaf, i, manifest);
    }
    for (let i = leafCount - expected.windowPages(leafCount); i < leafCount; i++) {
      const page = await nextPayload(`window page ${i}`, 'window', keys.leaves[i], expected.windowBytes);
      check(expected.isValidWindowPage(page), `its window page ${i} has lists that do not fit into it`);
      await addWindowPage(page, i);
    }
    const sinks = await nextPayload('sinks', 'sinks', keys.sinks, expected.sinkBytes);
    const tailBytes = expected.tailBytes(tokens.length - leafCount * pageTokens);
    const tail = await nextPayload('tail', 'tail', keys.tail, tailBytes);
    const { value: signature } = await records.next();
    check(signature === undefined || signature.kind === 'hmac', 'records follow its tail');
    check((await records.next()).done === true, 'records follow its signature');
    const isSigned = !!signature && !!signer && isSameSignature(signature.payload, signer.digest());
    return { ...manifest, sinks, tail, isSigned };
  } finally {
    await records.return();
  }
}

function sessionKeys({ identity, tokens, pageTokens, sinkTokens, leafCount }: SessionManifest) {
  const root = rootKey({ ...identity, salt: '' });
  const leaves = leafKeys(root, tokens, pageTokens, leafCount);
  return {
    ...{ root, leaves },
    sinks: childKey(root, tokens.subarray(0, sinkTokens)),
    tail: childKey(leaves.at(-1) ?? root, tokens.subarray(leafCount * pageTokens)),
  };
}

const sameKey = (a: LeafKey, b: LeafKey): boolean => a.every((byte, i) => byte === b[i]);
