/**
 * llama.cpp's cache types: q8_0 and q4_0, blocks of 32 values with an f16 scale, and the same after its Hadamard rotation
 * (q8_0h, q4_0h). Keys are centered first; with `-raw` they are llama.cpp's byte for byte, so that the two programs can be
 * compared value by value.
 */
import { ShapeError } from '../../util/errors.ts';
import { centerKeys, isCentered, RAW } from '../centered.ts';
import type { Shape, Side } from '../codec.ts';
import { identityDomain, rotatedDomain } from '../domain.ts';
import type { Family } from '../family.ts';
import { type PageFormat, pageCodec } from '../page-codec.ts';
import { layoutFields } from '../page-fields.ts';
import { blockHadamard } from '../parts/hadamard.ts';
import { f16 } from '../scalars.ts';

const BLOCK = 32;

interface BlockType {
  bytes: number;
  about: string;
  budget: number;
  /** Encodes the 32 values from x[at] on. */
  write(x: Float64Array, at: number, block: Uint8Array): void;
  read(block: Uint8Array, out: Float64Array, at: number): void;
}

/** f16 scale d, then 32 x int8: value = d q, d = max |x| / 127. */
const q8_0: BlockType = {
  bytes: 34,
  about: 'f16 scale, 32 x int8',
  budget: 3.1e-5,
  write(x, at, block) {
    let maxMagnitude = 0;
    for (let i = 0; i < BLOCK; i++) maxMagnitude = Math.max(maxMagnitude, Math.abs(x[at + i]));
    const scale = maxMagnitude / 127;
    f16.write(block, 0, scale);
    for (let i = 0; i < BLOCK; i++) block[2 + i] = scale > 0 ? roundHalfAway(x[at + i] / scale) : 0;
  },
  read(block, out, at) {
    const scale = f16.read(block, 0);
    for (let i = 0; i < BLOCK; i++) out[at + i] = scale * ((block[2 + i] << 24) >> 24);
  },
};

/**
 * f16 scale d, then 16 bytes with value i in the low nibble of byte i and value 16 + i in the high one: value = d (q - 8),
 * d = -(the value of largest magnitude) / 8, so that this value is exact.
 */
const q4_0: BlockType = {
  bytes: 18,
  about: 'f16 scale, 16 bytes: values 0-15 in the low nibbles, 16-31 in the high ones',
  budget: 0.0079,
  write(x, at, block) {
    let largest = 0;
    for (let i = 0; i < BLOCK; i++) if (Math.abs(x[at + i]) > Math.abs(largest)) largest = x[at + i];
    const scale = largest / -8;
    const code = (i: number) => (scale === 0 ? 8 : Math.max(0, Math.min(15, Math.floor(x[at + i] / scale + 8.5))));
    f16.write(block, 0, scale);
    for (let i = 0; i < BLOCK / 2; i++) block[2 + i] = code(i) | (code(i + BLOCK / 2) << 4);
  },
  read(block, out, at) {
    const scale = f16.read(block, 0);
    for (let i = 0; i < BLOCK / 2; i++) {
      out[at + i] = scale * ((block[2 + i] & 15) - 8);
      out[at + BLOCK / 2 + i] = scale * ((block[2 + i] >> 4) - 8);
    }
  },
};

/** C's roundf: rounds halves away from zero. */
const roundHalfAway = (x: number) => Math.sign(x) * Math.floor(Math.abs(x) + 0.5);

export const llamaBlocks: Family = {
  title: 'llama.cpp blocks',
  pattern: /^(q8_0|q4_0)(h?)$/,
  bases: ['q8_0', 'q8_0h', 'q4_0', 'q4_0h'],
  variants: [RAW],
  create(request) {
    const { spec, match, side, shape } = request;
    const type = match[1] === 'q8_0' ? q8_0 : q4_0;
    const { headDim } = shape;
    const divisor = match[2] ? 64 : BLOCK;
    if (headDim % divisor !== 0)
      throw new ShapeError(
        match[2]
          ? `${spec} rotates blocks of 64 dims, and ${headDim} is not a multiple of 64. Use ${match[1]} or tq4.`
          : `${spec} stores blocks of 32 values, and ${headDim} is not a multiple of 32. Use a codec without blocks, such as tq4.`,
      );
    return pageCodec({
      spec,
      shape,
      budget: type.budget,
      isIdempotent: match[2] === '' && !isCentered(request),
      domain: match[2]
        ? rotatedDomain(headDim, blockHadamard(headDim, rotationBlock(headDim, side)))
        : identityDomain(headDim),
      format: centerKeys(request, blockFormat(type, shape)),
    });
  },
};

/** The same as in llama.cpp: the largest power of two that divides headDim for keys, 64 for values. */
const rotationBlock = (headDim: number, side: Side) => (side === 'value' ? 64 : headDim & -headDim);

/** One head's block: pageTokens rows of headDim / 32 blocks. */
function blockFormat(type: BlockType, { headDim, kvHeads, pageTokens }: Shape): PageFormat {
  const blocks = headDim / BLOCK;
  const fields = [
    {
      name: 'blocks',
      bytes: pageTokens * blocks * type.bytes,
      per: 'head' as const,
      about: `${pageTokens} rows of ${blocks} blocks of 32 values: ${type.about}`,
    },
  ];
  const layout = layoutFields(fields, kvHeads);
  const blockAt = (page: Uint8Array, head: number, token: number, b: number) => {
    const start = (token * blocks + b) * type.bytes;
    return layout.field(page, 'blocks', head).subarray(start, start + type.bytes);
  };
  return {
    fields,
    encoding: { kind: type === q8_0 ? 'q8_0' : 'q4_0' },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        for (let t = 0; t < tokens; t++) {
          for (let b = 0; b < blocks; b++) type.write(vectors, t * headDim + b * BLOCK, blockAt(page, head, t, b));
        }
      });
    },
    read(page, head, token, out) {
      for (let b = 0; b < blocks; b++) type.read(blockAt(page, head, token, b), out, b * BLOCK);
    },
  };
}
