/**
 * The key of a leaf: a sha256 chain that names everything its bytes depend on. Two caches whose keys are equal hold the
 * same bytes, so leaves can be shared, stored and restored by key.
 *
 *   root  = sha256(fields of the identity)
 *   child = sha256(parent, token ids of the page)
 *
 * A field is its length in bytes (u32) and its UTF-8 text; a token id is a u32; all numbers are little-endian. The root's
 * fields, in order: "kvasir leaf 1", model, rope, plan, tables, arithmetic, format (decimal), salt.
 */
import { InputError } from '../util/errors.ts';
import { createSha256 } from '../util/sha256.ts';

export const KEY_BYTES = 32;

export type LeafKey = Uint8Array<ArrayBuffer>;

/** What decides the bytes of a leaf, besides its tokens and those before it. */
export interface CacheIdentity {
  /** Fingerprint of the model. */
  model: string;
  /** Hash of the RoPE frequencies. */
  rope: string;
  /** The resolved plan: the spec of every layer, what stays f16, and the tokens per page. */
  plan: string;
  /** Hash of the learned tables that the plan uses; empty if it uses none. */
  tables: string;
  /** What computed the bytes, where that changes them: the device and its modes. */
  arithmetic: string;
  /** Version of the page format. */
  format: number;
  /** Separates tenants, who must not learn from hits what others have asked; empty if there is one. */
  salt: string;
}

const DOMAIN = 'kvasir leaf 1';

export function rootKey({ model, rope, plan, tables, arithmetic, format, salt }: CacheIdentity): LeafKey {
  const hasher = createSha256();
  for (const field of [DOMAIN, model, rope, plan, tables, arithmetic, String(format), salt]) {
    // They would all become U+FFFD, and different salts the same.
    if (/\p{Cs}/u.test(field))
      throw new InputError(`A cache identity has a lone surrogate: ${JSON.stringify(field)}. Use valid Unicode text.`);
    const text = new TextEncoder().encode(field);
    hasher.update(u32Bytes([text.length])).update(text);
  }
  return hasher.digest();
}

export function childKey(parent: LeafKey, tokenIds: ArrayLike<number>): LeafKey {
  return createSha256().update(parent).update(u32Bytes(tokenIds)).digest();
}

/** The keys of the first `count` pages of a sequence. */
export function leafKeys(root: LeafKey, tokens: Int32Array, pageTokens: number, count: number): LeafKey[] {
  const keys: LeafKey[] = [];
  for (let page = 0; page < count; page++)
    keys.push(childKey(keys[page - 1] ?? root, tokens.subarray(page * pageTokens, (page + 1) * pageTokens)));
  return keys;
}

function u32Bytes(numbers: ArrayLike<number>): Uint8Array {
  const view = new DataView(new ArrayBuffer(4 * numbers.length));
  for (let i = 0; i < numbers.length; i++) view.setUint32(4 * i, numbers[i], true);
  return new Uint8Array(view.buffer);
}
