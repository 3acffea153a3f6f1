/**
 * Additive code books of four dims (mead), as integers: an entry is a word of four bytes.
 *
 *   keys     a lane has eight tokens of every other column: looks up their entries and multiplies them with the quad's word of
 *            an int8 query. In the end lanes exchange: each then has four tokens of all columns
 *   values   a lane owns columns, and so a copy of their code books in its own bank; entries of four tokens are transposed and
 *            multiplied with quantized probabilities. The last columns are shared by two or four lanes, with some tokens each
 */

import type { PageEncoding, PageLayout } from '../../../page-layout.ts';
import type { AttendShape } from '../attend.ts';
import { pageStart } from '../names.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import type { PageShape } from '../shape.ts';
import { float, transpose4x4Bytes } from '../snippets.ts';
import { COLUMN_WORDS, encodingTableOffset } from '../tables.ts';
import type { KeyStage, QueryWords, ValueStage } from './attend.ts';
import { opaque, SCRATCH, vectors } from './names.ts';
import { loadQueryWords } from './page-relative.ts';
import { quantizedProbabilities } from './quantized-probabilities.ts';
import { WORKGROUP_SIZE } from './subgroup.ts';

const ENTRIES = 16;
/** Maximum columns per lane whose code books fit in workgroup memory. */
const MAX_ROUNDS = 5;
/** Columns of keys prefetched before the first is used. */
const PREFETCH = 4;

type Additive = PageEncoding & { kind: 'additive' };

/** Maximum number of columns per head. */
function maxColumns({ booksPerQuad }: Additive, { headDim, kvHeads }: PageShape): number {
  const quads = headDim / 4;
  const heads = Array.from({ length: kvHeads }, (_, head) =>
    booksPerQuad.subarray(head * quads, (head + 1) * quads).reduce((sum, count) => sum + count, 0),
  );
  return Math.max(1, ...heads);
}

function additiveOf({ encoding, codedDim }: PageLayout, shape: PageShape): Additive | undefined {
  const { headDim: D, pageTokens: P } = shape;
  if (encoding.kind !== 'additive' || codedDim !== D || P !== 4 * LANES || D % LANES !== 0) return undefined;
  return maxColumns(encoding, shape) <= MAX_ROUNDS * LANES ? encoding : undefined;
}

/** Fills the code books: word n of column c goes to `place` of its round. All are loaded before the first is stored. */
const fillBooks = (rounds: number, columns: string, entry: string, place: string) => {
  const times = (rounds * LANES * ENTRIES) / WORKGROUP_SIZE;
  return `{
    let n = local_index % ${ENTRIES};
    @unroll(k, ${times}) {
      let c$k = local_index / ${ENTRIES} + $(k * ${WORKGROUP_SIZE / ENTRIES});
      var entry$k = 0u;
      if (c$k < ${columns}) { let c = c$k; entry$k = ${entry}; }
    }
    @unroll(k, ${times}) if (c$k < ${columns}) { let c = c$k; books[c / ${LANES}][${place}] = entry$k; }
  }`;
};

export function additiveKeys(name: string, layout: PageLayout, shape: AttendShape): KeyStage | undefined {
  const page = additiveOf(layout, shape);
  if (!page || !layout.ropeFrequencies) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  // Layers share kernels, so sizes are whole rounds of lanes.
  const rounds = Math.ceil(maxColumns(page, shape) / LANES);
  const tableStart = encodingTableOffset(layout);
  const word = (at: string) => `keyTables[${tableStart} + ${at}]`;
  const column = (c: string, k: string) => word(`p.keyColumns + (${c}) * ${COLUMN_WORDS} + ${k}`);
  const firstOf = (quad: string) => word(`head * ${D / 4} + ${quad}`);
  // One word per quad, including its scale.
  const words: QueryWords = {
    maxWords: D / 4,
    count: `let count = ${D / 4}u;`,
    step: n =>
      `select(0.0, bitcast<f32>(${column(firstOf(`${n} / 4`), '1')}), ${firstOf(`${n} / 4 + 1`)} > ${firstOf(`${n} / 4`)})`,
    dims: n => `(4 * ${n} + vec4u(0, 1, 2, 3))`,
  };
  const queries = loadQueryWords(words, shape);
  return {
    name: `additive ${rounds} ${name}`,
    dim: D,
    queryWords: words,
    text: `${queries.text}
var<workgroup> key_quads: array<u32, ${rounds * LANES}>;`,
    setup: `let first_keys = ${firstOf('0')};
  let key_columns = ${firstOf(`${D / 4}`)} - first_keys;
  for (var c = local_index; c < key_columns; c += ${WORKGROUP_SIZE}) { key_quads[c] = ${column('first_keys + c', '0')}; }`,
    books: {
      rounds,
      fill: fillBooks(
        rounds,
        'key_columns',
        `${column('first_keys + c', '2 + n')} ^ 0x80808080u`,
        `c % ${LANES} * ${ENTRIES} + n`,
      ),
    },
    sums: Q => `
  ${queries.begin(Q)}
  // Slot 0 has the nibble of a lane's own tokens, slot 1 the other nibble.
  let own_half = lane / 4 % 2;
  let codes_at = ${pageStart('key')} / 4 + first_keys * ${P / 8} + lane / 8 * 4 + lane % 4;
  @unroll(s, 2) @unroll(j, 4) let shift$s_$j = 4 * (own_half ^ $su) + $(8 * j);
  @unroll(v, ${vectors(Q)}) {
    @unroll(j, 4) var dots$j_$v: vec4f;
    {
      @unroll(s, 2) @unroll(j, 4) var d$s_$j = vec4i(0);
      for (var first = own_half; first < key_columns; first += ${2 * PREFETCH}) {
        @unroll(a, ${PREFETCH}) {
          let c$a = min(first + $(2 * a), key_columns - 1);
          let codes$a = pool[codes_at + c$a * ${P / 8}];
          let q$a = select(vec4u(0), ${queries.word(Q, 'key_quads[c$a]')}, first + $(2 * a) < key_columns);
        }
        // Columns past the last contribute 0. A branch would keep compilers from overlapping the lookups.
        @unroll(a, ${PREFETCH}) {{
          let book = (c$a % ${LANES}) << 4u;
          @unroll(s, 2) @unroll(j, 4) let e$s_$j = books[c$a / ${LANES}][book | ((codes$a >> shift$s_$j) & 15u)];
          @unroll(s, 2) @unroll(j, 4) d$s_$j += vec4i(@list(k, 4, dot4I8Packed(e$s_$j, q$a[$k])));
        }}
      }
      @unroll(j, 4) dots$j_$v = vec4f(d0_$j) + shuffle_xor(vec4f(d1_$j), 4u);
    }
  }`,
  };
}

export function additiveValues(name: string, layout: PageLayout, shape: PageShape): ValueStage | undefined {
  const page = additiveOf(layout, shape);
  if (!page) return undefined;
  const { headDim: D, pageTokens: P } = shape;
  const rounds = Math.ceil(maxColumns(page, shape) / LANES);
  const tableStart = encodingTableOffset(layout);
  const word = (at: string) => `valueTables[${tableStart} + ${at}]`;
  const column = (c: string, k: string) => word(`p.valueColumns + (${c}) * ${COLUMN_WORDS} + ${k}`);
  const quantized = quantizedProbabilities(P);
  const blocks = P / 32;
  // Entry n of a lane's column is word 32 n + its place: every column has its own bank.
  const entry = (index: string) => `books[round][(${index} & 0x1e0u) | bank]`;
  return {
    name: `additive ${rounds} ${name}`,
    dim: D,
    scratchVectors: quantized.scratchVectors,
    dims: 0,
    sharedSums: true,
    text: `// Per column: index, quad and place in the quad (10 bits each), and the scale.
var<workgroup> value_columns_info: array<vec2u, ${rounds * LANES}>;`,
    setup: /* wgsl */ `
  let first_values = ${word(`head * ${D / 4}`)};
  let value_columns = ${word(`head * ${D / 4} + ${D / 4}`)} - first_values;
  for (var n = local_index; n < value_columns; n += ${WORKGROUP_SIZE}) {
    let c = ${column('first_values + n', `${COLUMN_WORDS - 1}`)};
    let quad = ${column('first_values + c', '0')};
    let place = first_values + c - ${word(`head * ${D / 4} + quad`)};
    value_columns_info[n] = vec2u(c | (quad << 10u) | (place << 20u), ${column('first_values + c', '1')});
  }`,
    books: {
      rounds,
      fill: fillBooks(
        rounds,
        'value_columns',
        column('first_values + value_columns_info[c].x % 1024', '2 + n'),
        `n * ${LANES} + c % ${LANES}`,
      ),
    },
    sum: Q => `
  for (var i = lane; i < ${D * vectors(Q)}; i += ${LANES}) { ${SCRATCH}[sums + i] = vec4u(0); }
  ${quantized.store(Q)}
  @unroll(v, ${vectors(Q)}) let all$v = reduce_add(prob_sum$v);
  for (var first = 0u; first < value_columns; first += ${LANES}) {
    // Lanes that share a column.
    let left = value_columns - first;
    let sharers = select(select(4u, 2u, left > ${LANES / 4}), 1u, left > ${LANES / 2});
    let bank = lane % (${LANES} / sharers);
    let round = first / ${LANES};
    let info = value_columns_info[min(first + bank, value_columns - 1)];
    let at = ${pageStart('value')} / 16 + (first_values + info.x % 1024) * ${blocks};
    let block_count = ${blocks} / sharers;
    let from_block = lane / (${LANES} / sharers) * block_count;
    @unroll(k, 4) @unroll(v, ${vectors(Q)}) var d$k_$v = vec4u(0);
    for (var b = from_block; b < from_block + block_count; b++) {
      var codes = pool4[at + b];
      // A loop, since unrolled it takes too many registers.
      for (var nibble = 0u; nibble < ${opaque(2)}; nibble++) {
        @unroll(n, 4) {{
          let x0 = ${entry('(codes[$n] << 5u)')};
          @unroll(j, 1..4) let x$j = ${entry('(codes[$n] >> $(8 * j - 5)u)')};
          ${transpose4x4Bytes}
          @unroll(v, ${vectors(Q)}) {{
            let w = ${quantized.at(Q, '8 * b + 4 * nibble + $n')};
            @unroll(k, 4) d$k_$v += vec4u(@list(q, 4, dot4U8Packed(y$k, w[$q])));
          }}
        }}
        codes >>= vec4u(4);
      }
    }
    @unroll(k, 4) @unroll(v, ${vectors(Q)}) var o$k_$v = vec4f(d$k_$v);
    if (sharers > 1) { @unroll(k, 4) @unroll(v, ${vectors(Q)}) o$k_$v += shuffle_xor(o$k_$v, 16u); }
    if (sharers > 2) { @unroll(k, 4) @unroll(v, ${vectors(Q)}) o$k_$v += shuffle_xor(o$k_$v, 8u); }
    let unit = bitcast<f32>(info.y) * ${float(1 / 255)};
    let quad = (info.x >> 10u) % 1024;
    let place = info.x >> 20u;
    let here = lane < min(left, ${LANES}u);
    // Columns are sorted by their place in a quad: lanes with the same place have different quads.
    let last = ${column(`first_values + min(first + ${LANES}, value_columns) - 1`, `${COLUMN_WORDS - 2}`)};
    for (var current_place = ${column('first_values + first', `${COLUMN_WORDS - 2}`)}; current_place <= last; current_place++) {
      for (var pair = 0u; pair < 2; pair++) {
        workgroupBarrier();
        if (here && place == current_place && subgroup / 2 == pair) {
          @unroll(k, 4) @unroll(v, ${vectors(Q)}) {{
            let i = sums + (4 * quad + $k) * ${vectors(Q)} + $v;
            ${SCRATCH}[i] = bitcast<vec4u>(
              fma(fma(vec4f(-128.0), all$v, o$k_$v), page_factor$v * unit, bitcast<vec4f>(${SCRATCH}[i])));
          }}
        }
      }
    }
  }`,
  };
}
