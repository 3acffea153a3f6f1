/**
 * The manifest of a session: what it belongs to and which tokens it holds. Its payload:
 *
 *   0   u32       number of tokens n, little-endian as all numbers
 *   4   n u32     token ids
 *   .   JSON      UTF-8, spaces at its end up to a multiple of 16 bytes of payload: `ManifestJson` below
 *
 * Manifests are untrusted: counts are checked before memory is allocated, and identities must be short and of
 * ASCII text, since error messages show them. Only `extra` is returned as it is, for the caller to check.
 */

import { type SealingRule, sealedPagesAt } from '../kernel/visibility.ts';
import type { CacheIdentity } from '../store/leaf-key.ts';
import type { Check } from '../store/record.ts';
import { assert, CapacityError, type OptionNames, UnsupportedError } from '../util/errors.ts';
import { formatCount } from '../util/units.ts';

/** What a session can be resumed with: all of it must be equal. */
export interface SessionIdentity extends Omit<CacheIdentity, 'salt'> {
  /** Fingerprint of the tokenizer. */
  tokenizer: string;
}

export interface SessionManifest {
  identity: SessionIdentity;
  pageTokens: number;
  /** The first tokens, which stay f16. */
  sinkTokens: number;
  /** The tokens in the cache: those of the leaves, then those of the tail. */
  tokens: Int32Array;
  leafCount: number;
  /** JSON of the caller, such as messages. */
  extra?: unknown;
}

/** What a reader accepts. */
export interface ManifestLimits extends SealingRule {
  identity: SessionIdentity;
  sinkTokens: number;
  /** The context: maximum number of tokens. */
  maxTokens: number;
  /** Number of token ids. */
  vocab: number;
}

type ManifestJson = Omit<SessionManifest, 'tokens'>;

const MAX_JSON_BYTES = 2 ** 24;
const IDENTITY_TEXT = /^[\x20-\x7e]{0,65536}$/;
const ALIGN = 16;
const SPACE = 0x20;

/** In the order in which differences are named. */
const IDENTITY_FIELDS: Record<keyof SessionIdentity, { difference: string; remedy: (option: OptionNames) => string }> =
  {
    model: { difference: 'another model', remedy: () => 'open the model it was saved with' },
    tokenizer: { difference: 'another tokenizer', remedy: () => 'open the model it was saved with' },
    rope: {
      difference: 'another RoPE',
      remedy: option => `load the model with the ${option('context')} it was saved with`,
    },
    plan: { difference: 'another plan', remedy: option => `use the same ${option('kv')}` },
    tables: { difference: 'other profile tables', remedy: option => `use the ${option('profile')} it was saved with` },
    arithmetic: { difference: 'another device arithmetic', remedy: () => 'use the same device and precision' },
    format: { difference: 'another page format', remedy: () => 'use the Kvasir it was saved with' },
  };
const IDENTITY_NAMES = Object.keys(IDENTITY_FIELDS) as (keyof SessionIdentity)[];

/** Maximum length of a manifest's payload. */
export const maxManifestBytes = (maxTokens: number): number => 4 + 4 * maxTokens + MAX_JSON_BYTES;

export function encodeManifest({ tokens, ...content }: SessionManifest): Uint8Array<ArrayBuffer> {
  for (const name of IDENTITY_NAMES)
    assert(isIdentityField(name, content.identity[name]), `the ${name} of a session's identity is invalid`);
  const json = new TextEncoder().encode(JSON.stringify(content satisfies ManifestJson));
  if (json.length + ALIGN > MAX_JSON_BYTES)
    throw new CapacityError(
      `The messages of a session have at most ${formatCount(MAX_JSON_BYTES)} bytes; these have ` +
        `${formatCount(json.length)}. Start a new conversation with fewer of them.`,
    );
  const start = 4 + 4 * tokens.length;
  const payload = new Uint8Array(Math.ceil((start + json.length) / ALIGN) * ALIGN).fill(SPACE, start);
  const view = new DataView(payload.buffer);
  view.setUint32(0, tokens.length, true);
  tokens.forEach((id, i) => {
    view.setUint32(4 + 4 * i, id, true);
  });
  payload.set(json, start);
  return payload;
}

/** Throws if the manifest is invalid, of another identity, or too long for the context. */
export function decodeManifest(payload: Uint8Array, limits: ManifestLimits, check: Check): SessionManifest {
  const view = new DataView(payload.buffer, payload.byteOffset, payload.length);
  check(payload.length >= 4, 'its manifest is truncated');
  const count = view.getUint32(0, true);
  const start = 4 + 4 * count;
  check(start <= payload.length, `its manifest claims ${formatCount(count)} tokens and is shorter than that`);
  const json = asRecord(parseJson(payload.subarray(start), check));
  const identity = checkIdentity(json.identity, check);
  compareIdentities(identity, limits.identity);
  const { pageTokens, sinkTokens, leafCount, extra } = json;
  check(pageTokens === limits.pageTokens && sinkTokens === limits.sinkTokens, 'its page size contradicts its plan');
  if (count > limits.maxTokens)
    throw new CapacityError(
      option =>
        `The session has ${formatCount(count)} tokens, and the context is ${formatCount(limits.maxTokens)}. Open the ` +
        `model with a larger ${option('context')}.`,
    );
  check(Number.isSafeInteger(leafCount) && (leafCount as number) >= 0, 'its number of leaves is invalid');
  // A page is sealed with the first token that reads it from codes, or before.
  const leafCounts = [count, count - 1].map(tokens => sealedPagesAt(tokens, limits));
  check(
    leafCounts.includes(leafCount as number),
    `${formatCount(count)} tokens do not have ${formatCount(leafCount as number)} leaves`,
  );
  const tokens = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    const id = view.getUint32(4 + 4 * i, true);
    check(id < limits.vocab, `its token ${i} has the id ${id}, and the vocabulary has ${limits.vocab}`);
    tokens[i] = id;
  }
  return { identity, pageTokens, sinkTokens, tokens, leafCount: leafCount as number, extra };
}

function parseJson(bytes: Uint8Array, check: Check): unknown {
  try {
    return JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch {
    return check(false, 'its manifest is not JSON');
  }
}

/** Returns a new identity with only the checked fields. */
function checkIdentity(value: unknown, check: Check): SessionIdentity {
  const fields = asRecord(value);
  for (const name of IDENTITY_NAMES)
    check(isIdentityField(name, fields[name]), `the ${name} in its manifest is invalid`);
  return Object.fromEntries(IDENTITY_NAMES.map(name => [name, fields[name]])) as unknown as SessionIdentity;
}

const isIdentityField = (name: keyof SessionIdentity, value: unknown): boolean =>
  name === 'format' ? Number.isSafeInteger(value) : typeof value === 'string' && IDENTITY_TEXT.test(value);

function compareIdentities(saved: SessionIdentity, here: SessionIdentity): void {
  const differs = (name: keyof SessionIdentity) => saved[name] !== here[name];
  // Another model or plan has other tables, whatever its profile.
  const implied = (name: keyof SessionIdentity) => name === 'tables' && (differs('model') || differs('plan'));
  const differing = IDENTITY_NAMES.filter(name => differs(name) && !implied(name));
  if (differing.length === 0) return;
  const differences = differing.map(
    name => `${IDENTITY_FIELDS[name].difference} (${showBoth(String(saved[name]), String(here[name]))})`,
  );
  const remedies = (option: OptionNames) => new Set(differing.map(name => IDENTITY_FIELDS[name].remedy(option)));
  throw new UnsupportedError(
    option =>
      `The session cannot be resumed: it was saved with ${differences.join(', ')}. To resume it, ` +
      `${[...remedies(option)].join(', ')}; or start a new conversation with its messages.`,
  );
}

/** Both values, shortened to where they differ. */
function showBoth(saved: string, here: string): string {
  let same = 0;
  while (same < saved.length && saved[same] === here[same]) same++;
  const from = Math.max(0, same - 20);
  const show = (text: string) => {
    if (text === '') return 'none';
    if (/^[0-9a-f]{64}$/.test(text)) return text.slice(0, 12);
    return text.length <= 60
      ? text
      : `${from > 0 ? '...' : ''}${text.slice(from, from + 60)}${from + 60 < text.length ? '...' : ''}`;
  };
  return `${show(saved)}, here ${show(here)}`;
}

const asRecord = (value: unknown): Record<string, unknown> =>
  typeof value === 'object' && value !== null ? { ...value } : {};
