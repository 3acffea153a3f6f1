/**
 * A profile: what calibration learned of one model, for codecs and for plans. One file:
 *
 *   0   8 bytes   "kvasirpf"
 *   8   u32       format version, 1; all numbers are little-endian
 *   12  u32       length of the header
 *   16  header    JSON, UTF-8, spaces at its end up to a multiple of 4: `Header` below
 *   .   arrays    in the order of the header's list, f16 or f32, each padded with zeros to a multiple of 4
 *   end 32 bytes  sha256 of all bytes before; it is the profile's hash, too
 *
 * A file may come from anywhere, so nothing in it is believed: counts are held against the bytes that are there before
 * memory is taken, numbers must be finite, and whatever is wrong leaves nothing loaded.
 */
import type { Side } from '../codec/codec.ts';
import type { Learned } from '../codec/learned.ts';
import { FormatError, UnsupportedError } from '../errors.ts';
import { fromF16, toF16 } from '../kernel/float.ts';

export type NumberType = 'f16' | 'f32';

/** How it was made, for people and for whoever wants to make it again. */
export interface Origin {
  tokens: number;
  context: number;
  samples: number;
  seed: number;
  /** sha256 of the token ids, in hex; `self` where the model wrote them itself. */
  text: string;
  codecs: readonly string[];
  /** Of the package. */
  version: string;
}

export interface ProfileShape {
  layers: number;
  kvHeads: number;
  headDim: number;
  /** RoPE: the angle of each adjacent pair a position. */
  turn: readonly number[];
}

export interface ProfileContent {
  /** Of the model. */
  fingerprint: string;
  shape: ProfileShape;
  made: Origin;
  /** [layer], by side. */
  learned: readonly Record<Side, Learned>[];
  /**
   * By codec: the divergence when one layer's side alone is coded, multiplied so that their sum is that of a whole plan;
   * [layer], by side.
   */
  sensitivities: Readonly<Record<string, readonly Record<Side, number>[]>>;
}

export interface Profile extends ProfileContent {
  /** sha256 of the file, in hex. */
  readonly hash: string;
}

interface ArrayEntry {
  layer: number;
  side: Side;
  name: string;
  type: NumberType;
  length: number;
}

type Header = Omit<ProfileContent, 'learned'> & { arrays: ArrayEntry[] };

const MAGIC = 'kvasirpf';
const VERSION = 1;
const START = 16;
const HASH = 32;
const SIDES = ['key', 'value'] as const;
const LARGEST_HEADER = 1 << 24;
const MOST_LAYERS = 4096;
const MOST_ARRAYS = 1 << 16;
/** Arrays longer than this are stored in f16 unless they may not be. */
const LARGEST_F32 = 1000;

const pad4 = (bytes: number) => Math.ceil(bytes / 4) * 4;
const SIZE: Record<NumberType, number> = { f16: 2, f32: 4 };

/** The file of a profile. Long arrays are rounded to f16, unless `types` says otherwise by name. */
export async function encodeProfile(
  content: ProfileContent,
  types: Readonly<Record<string, NumberType>> = {},
): Promise<Uint8Array<ArrayBuffer>> {
  const { learned, fingerprint, shape, made, sensitivities } = content;
  const arrays: ArrayEntry[] = [];
  const data: Float32Array[] = [];
  learned.forEach((sides, layer) => {
    for (const side of SIDES) {
      for (const [name, array] of Object.entries(sides[side])) {
        if (!array) continue;
        arrays.push({ layer, side, name, type: types[name] ?? typeOf(array), length: array.length });
        data.push(array);
      }
    }
  });
  const header: Header = { fingerprint, shape, made, sensitivities, arrays };
  const json = new TextEncoder().encode(JSON.stringify(header));
  const headerBytes = pad4(json.length);
  const total = arrays.reduce((sum, { type, length }) => sum + pad4(SIZE[type] * length), START + headerBytes + HASH);
  const bytes = new Uint8Array(total);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode(MAGIC));
  view.setUint32(8, VERSION, true);
  view.setUint32(12, headerBytes, true);
  bytes.fill(0x20, START, START + headerBytes);
  bytes.set(json, START);
  let offset = START + headerBytes;
  arrays.forEach(({ type, length }, i) => {
    data[i].forEach((x, j) => {
      if (type === 'f16') view.setUint16(offset + 2 * j, toF16(x), true);
      else view.setFloat32(offset + 4 * j, x, true);
    });
    offset += pad4(SIZE[type] * length);
  });
  bytes.set(await sha256(bytes.subarray(0, offset)), offset);
  return bytes;
}

/** f16 reaches to 65504, and is coarse below 2^-14. */
function typeOf(array: Float32Array): NumberType {
  if (array.length <= LARGEST_F32) return 'f32';
  let largest = 0;
  for (const x of array) largest = Math.max(largest, Math.abs(x));
  return largest > 65504 || largest < 2 ** -10 ? 'f32' : 'f16';
}

/** Reads a profile's file, or throws a FormatError; an UnsupportedError for one of another version. */
export async function decodeProfile(bytes: Uint8Array<ArrayBuffer>, name = 'The profile'): Promise<Profile> {
  const check: Check = checker(name);
  const text = (from: number, to: number) => new TextDecoder().decode(bytes.subarray(from, to));
  check(bytes.length >= START + HASH && text(0, 8) === MAGIC, 'it is no profile of Kvasir');
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const version = view.getUint32(8, true);
  if (version !== VERSION)
    throw new UnsupportedError(
      `${name} has format version ${version}; this Kvasir reads ${VERSION}. Calibrate again, or use the Kvasir that made it.`,
    );
  const end = bytes.length - HASH;
  const headerBytes = view.getUint32(12, true);
  check(headerBytes % 4 === 0 && headerBytes <= Math.min(LARGEST_HEADER, end - START), 'its header is cut short');
  const hash = bytes.subarray(end);
  const actual = await sha256(bytes.subarray(0, end));
  check(
    actual.every((byte, i) => byte === hash[i]),
    'its checksum does not fit: it is cut short or damaged',
  );
  const header = checkHeader(parseJson(text(START, START + headerBytes), check), check);

  const learned = Array.from({ length: header.shape.layers }, () => ({
    key: {} as Record<string, Float32Array>,
    value: {} as Record<string, Float32Array>,
  }));
  let offset = START + headerBytes;
  for (const { layer, side, name: array, type, length } of header.arrays) {
    const size = pad4(SIZE[type] * length);
    check(size <= end - offset, `it ends within "${array}" of layer ${layer}`);
    check(!Object.hasOwn(learned[layer][side], array), `"${array}" of layer ${layer} is there twice`);
    const numbers = new Float32Array(length);
    for (let i = 0; i < length; i++) {
      numbers[i] =
        type === 'f16' ? fromF16(view.getUint16(offset + 2 * i, true)) : view.getFloat32(offset + 4 * i, true);
    }
    check(numbers.every(Number.isFinite), `"${array}" of layer ${layer} holds numbers that are not finite`);
    learned[layer][side][array] = numbers;
    offset += size;
  }
  check(offset === end, `${end - offset} bytes belong to nothing`);
  const { arrays: _, ...rest } = header;
  return { ...rest, learned, hash: hex(hash) };
}

type Check = (condition: boolean, what: string) => asserts condition;

const checker =
  (name: string): Check =>
  (condition, what) => {
    if (!condition)
      throw new FormatError(`${name} cannot be used: ${what}. Fetch it again, or run \`kvasir calibrate MODEL\`.`);
  };

function parseJson(text: string, check: Check): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return check(false, 'its header is no JSON');
  }
}

/** Builds the header anew from what was found to be as it must. */
function checkHeader(given: unknown, check: Check): Header {
  const header = record(given);
  const shape = record(header.shape);
  const made = record(header.made);
  const whole = (x: unknown, low: number, high: number): x is number =>
    Number.isInteger(x) && (x as number) >= low && (x as number) <= high;
  const short = (x: unknown): x is string => typeof x === 'string' && x.length <= 200;
  const { layers, kvHeads, headDim, turn } = shape;
  check(typeof header.fingerprint === 'string' && /^[0-9a-f]{64}$/.test(header.fingerprint), 'it names no model');
  check(
    whole(layers, 1, MOST_LAYERS) && whole(kvHeads, 1, 1024) && whole(headDim, 4, 1024),
    'its shape makes no sense',
  );
  check(Array.isArray(turn) && 2 * turn.length <= headDim && turn.every(Number.isFinite), 'its angles make no sense');
  const { tokens, context, samples, seed, text, codecs, version } = made;
  check(
    [tokens, context, samples, seed].every(x => whole(x, 0, Number.MAX_SAFE_INTEGER)) &&
      short(text) &&
      short(version) &&
      Array.isArray(codecs) &&
      codecs.length <= 1000 &&
      codecs.every(short),
    'it does not say how it was made',
  );
  const list = header.arrays;
  check(Array.isArray(list) && list.length <= MOST_ARRAYS, 'its list of arrays makes no sense');
  return {
    fingerprint: header.fingerprint,
    shape: { layers, kvHeads, headDim, turn },
    made: { tokens, context, samples, seed, text, codecs, version } as Origin,
    sensitivities: checkSensitivities(record(header.sensitivities), layers, check),
    arrays: list.map(entry => {
      const { layer, side, name, type, length } = record(entry);
      check(
        whole(layer, 0, layers - 1) &&
          (side === 'key' || side === 'value') &&
          typeof name === 'string' &&
          /^[a-z][A-Za-z0-9.-]{0,63}$/.test(name) &&
          (type === 'f16' || type === 'f32') &&
          whole(length, 0, 2 ** 31),
        'its list of arrays makes no sense',
      );
      return { layer, side, name, type, length };
    }),
  };
}

function checkSensitivities(given: Record<string, unknown>, layers: number, check: Check): Header['sensitivities'] {
  const probes = Object.entries(given);
  check(probes.length <= 64, 'it has too many probes');
  return Object.fromEntries(
    probes.map(([probe, list]) => {
      check(probe.length <= 64 && Array.isArray(list) && list.length === layers, 'its sensitivities make no sense');
      const rows = list.map(entry => {
        const { key, value } = record(entry);
        check(Number.isFinite(key) && Number.isFinite(value), 'its sensitivities make no sense');
        return { key: key as number, value: value as number };
      });
      return [probe, rows];
    }),
  );
}

const record = (x: unknown): Record<string, unknown> => (typeof x === 'object' && x !== null ? { ...x } : {});

/** Web Crypto, which browsers have as well. */
async function sha256(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
}

const hex = (bytes: Uint8Array): string => Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('');

/** Refuses a profile of another model, or of a model that turned out otherwise than when it was calibrated. */
export function checkProfile(profile: Profile, shape: ProfileShape, fingerprint?: string): void {
  const { layers, kvHeads, headDim, turn } = profile.shape;
  const same =
    layers === shape.layers &&
    kvHeads === shape.kvHeads &&
    headDim === shape.headDim &&
    turn.length === shape.turn.length &&
    turn.every((angle, i) => angle === shape.turn[i]);
  if (same && (fingerprint === undefined || fingerprint === profile.fingerprint)) return;
  throw new UnsupportedError(
    `The profile was made for another model (${profile.fingerprint.slice(0, 12)}, ${layers} layers, ${kvHeads} KV heads ` +
      `of ${headDim}), not for this one${fingerprint ? ` (${fingerprint.slice(0, 12)})` : ''}. ` +
      'Run `kvasir calibrate MODEL` for this one, or name its own profile.',
  );
}
