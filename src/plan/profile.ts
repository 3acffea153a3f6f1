/**
 * A profile: the result of calibrating one model, for codecs and plans. File format:
 *
 *   0   8 bytes   "kvasirpf"
 *   8   u32       format version, 1; all numbers are little-endian
 *   12  u32       length of the header
 *   16  header    JSON, UTF-8, spaces at its end up to a multiple of 4: `Header` below
 *   .   arrays    in the order of the header's list, f16 or f32, each padded with zeros to a multiple of 4
 *   end 32 bytes  sha256 of all bytes before it; also the profile's hash
 *
 * Files are untrusted: counts are checked against the file's size before memory is allocated, numbers must be finite,
 * names must be short and printable, and an invalid file loads nothing.
 */
import { SIDES, type Side } from '../codec/codec.ts';
import type { Learned } from '../codec/learned.ts';
import { fromF16, toF16 } from '../kernel/float.ts';
import { FormatError, UnsupportedError } from '../util/errors.ts';
import { sha256, toHex } from '../util/sha256.ts';

type NumberType = 'f16' | 'f32';

/** A text that a profile was learned from. */
export interface TextSource {
  /** A file's name, or the kind of built-in text. */
  name: string;
  tokens: number;
}

/** The divergence of a whole plan on text of all sources that it was not learned from. */
export interface PlanMeasurement {
  /** The spec. */
  kv: string;
  /** Code bits per value. */
  bits: number;
  /** KL divergence from an f16 cache, in nats per token. */
  kld: number;
}

/** How a profile was made: everything needed to make it again. */
export interface Provenance {
  /** File name of the model. */
  model: string;
  /** Tokens it was calibrated on. */
  tokens: number;
  /** Tokens per row. */
  context: number;
  /** Keys and values kept per layer. */
  samples: number;
  seed: number;
  /** sha256 of the token ids, in hex. */
  text: string;
  sources: readonly TextSource[];
  codecs: readonly string[];
  /** Version of Kvasir. */
  version: string;
}

/** The model dimensions that a profile is valid for. */
export interface ProfileShape {
  layers: number;
  kvHeads: number;
  headDim: number;
  /** RoPE: the angle per position of each adjacent pair of dims. */
  ropeFrequencies: readonly number[];
  /** How many of the last tokens each layer sees, if not all see all. */
  attentionWindows?: readonly (number | undefined)[];
  /** The angles of layers with a window, if they are others. */
  localRopeFrequencies?: readonly number[];
}

/** What a profile file contains. */
export interface ProfileContent {
  /** sha256 of the model's files, in hex. */
  fingerprint: string;
  shape: ProfileShape;
  provenance: Provenance;
  /** The codecs' parameters: one entry per layer, by side. */
  learned: readonly Record<Side, Learned>[];
  /**
   * By codec: the part of a whole plan's divergence that one side of one layer causes, in nats per token, as estimated by
   * probes of single sides. One entry per layer, by side.
   */
  sensitivities: Readonly<Record<string, readonly Record<Side, number>[]>>;
  /** Whole plans, to choose from by `auto` and to tell what to expect. */
  measurements: readonly PlanMeasurement[];
}

/** A decoded profile. */
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
const HEADER_OFFSET = 16;
const HASH_BYTES = 32;
const MAX_HEADER_BYTES = 1 << 24;
const MAX_LAYERS = 4096;
const MAX_ARRAYS = 1 << 16;
/** Of other lists. */
const MAX_ENTRIES = 1000;
const MAX_NAME_LENGTH = 200;
/** Characters that could control a terminal or hide text in it. */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
/** Codec specs, which also name probes. */
const SPEC_PATTERN = /^[a-z][\w.:/+-]{0,63}$/;
/** Longer arrays are stored in f16, if their values allow it. */
const MAX_F32_LENGTH = 1000;

const pad4 = (bytes: number) => Math.ceil(bytes / 4) * 4;
const BYTES_PER_NUMBER: Record<NumberType, number> = { f16: 2, f32: 4 };

/** Encodes a profile file. Long arrays are rounded to f16. */
export async function encodeProfile(content: ProfileContent): Promise<Uint8Array<ArrayBuffer>> {
  const { learned, fingerprint, shape, provenance, sensitivities, measurements } = content;
  const arrays: ArrayEntry[] = [];
  const data: Float32Array[] = [];
  learned.forEach((sides, layer) => {
    for (const side of SIDES) {
      for (const [name, array] of Object.entries(sides[side])) {
        if (!array) continue;
        arrays.push({ layer, side, name, type: chooseNumberType(array), length: array.length });
        data.push(array);
      }
    }
  });
  // Format version 1 calls the RoPE frequencies `turn`, and the provenance `made`.
  const { ropeFrequencies: turn, ...sizes } = shape;
  const made = {
    ...provenance,
    model: toPrintableName(provenance.model),
    sources: provenance.sources.map(({ name, tokens }) => ({ name: toPrintableName(name), tokens })),
  };
  const header = { fingerprint, shape: { ...sizes, turn }, made, sensitivities, measurements, arrays };
  const json = new TextEncoder().encode(JSON.stringify(header));
  const headerBytes = pad4(json.length);
  const total = arrays.reduce(
    (sum, { type, length }) => sum + pad4(BYTES_PER_NUMBER[type] * length),
    HEADER_OFFSET + headerBytes + HASH_BYTES,
  );
  const bytes = new Uint8Array(total);
  const view = new DataView(bytes.buffer);
  bytes.set(new TextEncoder().encode(MAGIC));
  view.setUint32(8, VERSION, true);
  view.setUint32(12, headerBytes, true);
  bytes.fill(0x20, HEADER_OFFSET, HEADER_OFFSET + headerBytes);
  bytes.set(json, HEADER_OFFSET);
  let offset = HEADER_OFFSET + headerBytes;
  arrays.forEach(({ type, length }, i) => {
    data[i].forEach((x, j) => {
      if (type === 'f16') view.setUint16(offset + 2 * j, toF16(x), true);
      else view.setFloat32(offset + 4 * j, x, true);
    });
    offset += pad4(BYTES_PER_NUMBER[type] * length);
  });
  bytes.set(sha256(bytes.subarray(0, offset)), offset);
  return bytes;
}

/** A file's name as the format allows it. */
const toPrintableName = (name: string): string => name.replace(UNPRINTABLE, '\ufffd').slice(0, MAX_NAME_LENGTH);

/** f16 has a maximum of 65504 and loses precision below 2^-14. */
function chooseNumberType(array: Float32Array): NumberType {
  if (array.length <= MAX_F32_LENGTH) return 'f32';
  const largest = array.reduce((max, x) => Math.max(max, Math.abs(x)), 0);
  return largest > 65504 || largest < 2 ** -10 ? 'f32' : 'f16';
}

/**
 * Decodes a profile file. Throws a FormatError if it is invalid, and an UnsupportedError if it has another format version.
 * `name` is used in error messages.
 */
export async function decodeProfile(bytes: Uint8Array<ArrayBuffer>, name = 'The profile'): Promise<Profile> {
  const check: Check = createCheck(name);
  const text = (from: number, to: number) => new TextDecoder().decode(bytes.subarray(from, to));
  check(isProfileStart(bytes), 'it is not a Kvasir profile');
  check(bytes.length >= HEADER_OFFSET + HASH_BYTES, 'its header is truncated');
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const version = view.getUint32(8, true);
  if (version !== VERSION)
    throw new UnsupportedError(
      `${name} has format version ${version}; this Kvasir reads ${VERSION}. Calibrate again, or use the Kvasir that made it.`,
    );
  const end = bytes.length - HASH_BYTES;
  const headerBytes = view.getUint32(12, true);
  check(
    headerBytes % 4 === 0 && headerBytes <= Math.min(MAX_HEADER_BYTES, end - HEADER_OFFSET),
    'its header is truncated',
  );
  const hash = bytes.subarray(end);
  const actual = sha256(bytes.subarray(0, end));
  check(
    actual.every((byte, i) => byte === hash[i]),
    'its checksum does not match: it is truncated or damaged',
  );
  const header = checkHeader(parseJson(text(HEADER_OFFSET, HEADER_OFFSET + headerBytes), check), check);

  const learned = Array.from({ length: header.shape.layers }, () => ({
    key: {} as Record<string, Float32Array>,
    value: {} as Record<string, Float32Array>,
  }));
  let offset = HEADER_OFFSET + headerBytes;
  for (const { layer, side, name: array, type, length } of header.arrays) {
    const size = pad4(BYTES_PER_NUMBER[type] * length);
    check(size <= end - offset, `it ends within "${array}" of layer ${layer}`);
    check(!Object.hasOwn(learned[layer][side], array), `"${array}" of layer ${layer} appears twice`);
    const numbers = new Float32Array(length);
    for (let i = 0; i < length; i++) {
      numbers[i] =
        type === 'f16' ? fromF16(view.getUint16(offset + 2 * i, true)) : view.getFloat32(offset + 4 * i, true);
    }
    check(numbers.every(Number.isFinite), `"${array}" of layer ${layer} holds numbers that are not finite`);
    learned[layer][side][array] = numbers;
    offset += size;
  }
  check(offset === end, `${end - offset} bytes at its end are unused`);
  const { arrays: _, ...rest } = header;
  return { ...rest, learned, hash: toHex(hash) };
}

/** Whether a file that starts with these bytes is a profile. */
export const isProfileStart = (bytes: Uint8Array): boolean =>
  new TextDecoder().decode(bytes.subarray(0, MAGIC.length)) === MAGIC;

type Check = (condition: boolean, what: string) => asserts condition;

const createCheck =
  (name: string): Check =>
  (condition, what) => {
    if (!condition)
      throw new FormatError(`${name} cannot be used: ${what}. Download it again, or run \`kvasir calibrate MODEL\`.`);
  };

function parseJson(text: string, check: Check): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return check(false, 'its header is not JSON');
  }
}

/** Returns a new header with only the checked fields. */
function checkHeader(json: unknown, check: Check): Header {
  const header = asRecord(json);
  const shape = asRecord(header.shape);
  const provenance = asRecord(header.made);
  const { layers, kvHeads, headDim, turn, attentionWindows, localRopeFrequencies } = shape;
  check(
    typeof header.fingerprint === 'string' && /^[0-9a-f]{64}$/.test(header.fingerprint),
    'its model fingerprint is invalid',
  );
  check(
    isIntegerIn(layers, 1, MAX_LAYERS) && isIntegerIn(kvHeads, 1, 1024) && isIntegerIn(headDim, 4, 1024),
    'its shape is invalid',
  );
  const areAngles = (angles: unknown): angles is number[] =>
    Array.isArray(angles) && 2 * angles.length <= headDim && angles.every(Number.isFinite);
  check(
    areAngles(turn) && (localRopeFrequencies === undefined || areAngles(localRopeFrequencies)),
    'its RoPE frequencies are invalid',
  );
  const isWindow = (window: unknown) => window === null || isIntegerIn(window, 1, 2 ** 31 - 1);
  check(
    attentionWindows === undefined ||
      (Array.isArray(attentionWindows) && attentionWindows.length === layers && attentionWindows.every(isWindow)),
    'its windows are invalid',
  );
  // Profiles of Kvasir 0.1.0 have no model name, sources and measurements.
  const { tokens, context, samples, seed, text, codecs, version, model = '', sources = [] } = provenance;
  check(
    [tokens, context, samples, seed].every(isCount) &&
      [model, text, version].every(isName) &&
      isList(sources, MAX_ENTRIES) &&
      sources.map(asRecord).every(source => isName(source.name) && isCount(source.tokens)) &&
      isList(codecs, MAX_ENTRIES) &&
      codecs.every(isSpec),
    'its provenance is invalid',
  );
  const list = header.arrays;
  check(isList(list, MAX_ARRAYS), 'its list of arrays is invalid');
  return {
    fingerprint: header.fingerprint,
    shape: {
      ...{ layers, kvHeads, headDim, ropeFrequencies: turn },
      ...(attentionWindows && { attentionWindows: attentionWindows.map(window => window ?? undefined) }),
      ...(localRopeFrequencies && { localRopeFrequencies }),
    },
    provenance: {
      ...{ model, tokens, context, samples, seed, text },
      sources: sources.map(asRecord).map(({ name, tokens }) => ({ name, tokens })),
      ...{ codecs, version },
    } as Provenance,
    sensitivities: checkSensitivities(asRecord(header.sensitivities), layers, check),
    measurements: checkMeasurements(header.measurements ?? [], check),
    arrays: list.map(entry => {
      const { layer, side, name, type, length } = asRecord(entry);
      check(
        isIntegerIn(layer, 0, layers - 1) &&
          (side === 'key' || side === 'value') &&
          typeof name === 'string' &&
          /^[a-z][A-Za-z0-9.-]{0,63}$/.test(name) &&
          (type === 'f16' || type === 'f32') &&
          isIntegerIn(length, 0, 2 ** 31),
        'its list of arrays is invalid',
      );
      return { layer, side, name, type, length };
    }),
  };
}

function checkSensitivities(record: Record<string, unknown>, layers: number, check: Check): Header['sensitivities'] {
  const probes = Object.entries(record);
  check(probes.length <= 64, 'it has too many probes');
  return Object.fromEntries(
    probes.map(([probe, list]) => {
      check(isSpec(probe) && Array.isArray(list) && list.length === layers, 'its sensitivities are invalid');
      const rows = list.map(entry => {
        const { key, value } = asRecord(entry);
        check(Number.isFinite(key) && Number.isFinite(value), 'its sensitivities are invalid');
        return { key: key as number, value: value as number };
      });
      return [probe, rows];
    }),
  );
}

function checkMeasurements(list: unknown, check: Check): PlanMeasurement[] {
  check(isList(list, MAX_ENTRIES), 'its measurements are invalid');
  return list.map(entry => {
    const { kv, bits, kld } = asRecord(entry);
    const isAmount = (x: unknown): x is number => Number.isFinite(x) && (x as number) >= 0;
    check(isSpec(kv) && isAmount(bits) && isAmount(kld), 'its measurements are invalid');
    return { kv, bits, kld };
  });
}

const isIntegerIn = (x: unknown, low: number, high: number): x is number =>
  Number.isInteger(x) && (x as number) >= low && (x as number) <= high;
const isCount = (x: unknown) => isIntegerIn(x, 0, Number.MAX_SAFE_INTEGER);
const isName = (x: unknown) => typeof x === 'string' && x.length <= MAX_NAME_LENGTH && x.search(UNPRINTABLE) < 0;
const isList = (x: unknown, max: number): x is unknown[] => Array.isArray(x) && x.length <= max;
const isSpec = (x: unknown): x is string => typeof x === 'string' && SPEC_PATTERN.test(x);

const asRecord = (x: unknown): Record<string, unknown> => (typeof x === 'object' && x !== null ? { ...x } : {});

/** A profile with all of `added`, and what it lacks from `earlier`, which was calibrated for other codecs. */
export function mergeProfiles(earlier: ProfileContent | undefined, added: ProfileContent): ProfileContent {
  if (!earlier) return added;
  const names = new Set(added.measurements.map(({ kv }) => kv));
  return {
    ...added,
    provenance: {
      ...added.provenance,
      codecs: [...new Set([...earlier.provenance.codecs, ...added.provenance.codecs])],
    },
    learned: added.learned.map(({ key, value }, layer) => ({
      key: { ...earlier.learned[layer].key, ...key },
      value: { ...earlier.learned[layer].value, ...value },
    })),
    sensitivities: { ...earlier.sensitivities, ...added.sensitivities },
    measurements: [...earlier.measurements.filter(({ kv }) => !names.has(kv)), ...added.measurements],
  };
}

/** What calibration measured of a plan, in nats per token; undefined if it did not. */
export const measuredDivergence = (profile: Pick<Profile, 'measurements'> | undefined, spec: string) =>
  profile?.measurements.find(({ kv }) => kv === spec)?.kld;

/** JavaScript engines compute powers with different last bits. */
const isSameAngle = (a: number, b: number): boolean => Math.abs(a - b) <= 1e-12 * Math.abs(a);

/** Why a profile of the same model file does not fit. */
export const OTHER_ROPE =
  'The profile was learned with another RoPE: this model has one for long contexts and one for short ones. ' +
  'Run `kvasir calibrate MODEL` with the context that the model is loaded with.';

export const hasRopeOf = ({ shape: { ropeFrequencies } }: Profile, shape: ProfileShape): boolean =>
  ropeFrequencies.length === shape.ropeFrequencies.length &&
  ropeFrequencies.every((angle, i) => isSameAngle(angle, shape.ropeFrequencies[i]));

/** Throws if the profile is of another model, of another version of it, or of another RoPE. */
export function checkProfile(profile: Profile, shape: ProfileShape, fingerprint?: string): void {
  const { layers, kvHeads, headDim } = profile.shape;
  const sameSizes = layers === shape.layers && kvHeads === shape.kvHeads && headDim === shape.headDim;
  const sameRope = hasRopeOf(profile, shape);
  if (sameSizes && sameRope && (fingerprint === undefined || fingerprint === profile.fingerprint)) return;
  if (sameSizes && !sameRope && fingerprint === profile.fingerprint) throw new UnsupportedError(OTHER_ROPE);
  throw new UnsupportedError(
    `The profile is for another model (${profile.fingerprint.slice(0, 12)}, ${layers} layers, ${kvHeads} KV heads ` +
      `of ${headDim}), not for this one${fingerprint ? ` (${fingerprint.slice(0, 12)})` : ''}. ` +
      'Run `kvasir calibrate MODEL`, or give the profile of this model.',
  );
}
