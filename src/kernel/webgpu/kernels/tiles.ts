/**
 * Matrix products of many rows: a workgroup has a tile of weight rows by rows, so that what it reads of either serves
 * many products. Sums run in the order of matmul.ts.
 */
import type { Kernel } from '../gpu.ts';
import { BUNDLE } from '../weights.ts';
import { interfaceOf, type Matmul, nameOf, part, takesInt8, textOf } from './matmul.ts';
import { each } from './text.ts';

const SIZE = 256;

export interface Tile {
  /** Weight rows and rows that an invocation multiplies with each other: a sixteenth of the tile's. */
  outs: number;
  rows: number;
  /** Blocks between two barriers. */
  deep: number;
}

/** Bytes of workgroup memory. */
export const tileBytes = (m: Matmul, { outs, rows, deep }: Tile): number =>
  sidesOf(m) * deep * 16 * (outs + rows) * (takesInt8(m) ? 48 : 128);

/** Two rounds of int8 fit; of floats one does. */
const sidesOf = (m: Matmul) => (takesInt8(m) ? 2 : 1);

/**
 * A tile a workgroup, a few blocks at a time: what it needs of the next ones is asked for before the products of these are
 * made, and put beside them. Its invocations stand 16 by 16, a subgroup of 32 in 8 by 4 of them so that it reads few
 * addresses.
 */
export const matmulTile = (m: Matmul, { outs, rows, deep }: Tile): Kernel => {
  const [N, R] = [16 * outs, 16 * rows];
  const sides = sidesOf(m);
  const count = outs * rows;
  const fetch = (round: string) => `
      if (lane < ${N}) {
        ${each(deep, k => `nextWeights${k} = load_weights(weightBlock + min(${round} * ${deep} + ${k}, p.blocks - 1), o % ${BUNDLE});`)}
      } else if (lane < ${N + R}) {
        ${each(deep, k => `nextInput${k} = load_input(inputBlock + min(${round} * ${deep} + ${k}, p.blocks - 1));`)}
      }`;
  const keep = (side: string) => `
      if (lane < ${N}) { ${each(deep, k => `weights[(${side} * ${deep} + ${k}) * ${N} + lane] = nextWeights${k};`)} }
      else if (lane < ${N + R}) { ${each(deep, k => `input[(${side} * ${deep} + ${k}) * ${R} + lane - ${N}] = nextInput${k};`)} }`;
  const products = (k: number) => `
      if (round * ${deep} + ${k} < p.blocks) {
        ${each(outs, j => `let w${j} = weights[(now * ${deep} + ${k}) * ${N} + x + ${16 * j}];`)}
        ${each(rows, i => `{ let i = input[(now * ${deep} + ${k}) * ${R} + y + ${16 * i}]; ${each(outs, j => `acc${outs * i + j} = term(acc${outs * i + j}, w${j}, i);`)} }`)}
        while (round * ${deep} + ${k + 1} == part(n)) {
          ${each(count, i => `total${i} += acc${i}; acc${i} = 0.0;`)}
          n++;
        }
      }`;
  return {
    name: `matmul ${nameOf(m)} tile ${N} x ${R} x ${deep}`,
    ...interfaceOf(m),
    size: SIZE,
    body: /* wgsl */ `
${textOf(m)}
${part}
var<workgroup> weights: array<Weights, ${sides * deep * N}>;
var<workgroup> input: array<Input, ${sides * deep * R}>;
fn main(group: vec3u, lane: u32) {
  let x = lane % 8 + lane / 32 % 2 * 8;
  let y = lane / 8 % 4 + lane / 64 * 4;
  let firstOut = group.x * ${N};
  let firstRow = group.y * ${R};
  let o = min(firstOut + lane, p.rows - 1);
  let weightBlock = o / ${BUNDLE} * p.blocks;
  let inputBlock = min(firstRow + lane - ${N}, p.inputs - 1) * p.blocks;
  ${each(deep, k => `var nextWeights${k}: Weights; var nextInput${k}: Input;`)}
  ${each(count, i => `var total${i} = 0.0; var acc${i} = 0.0;`)}
  ${fetch('0u')}
  ${keep('0u')}
  // The first part that is not finished, counted from its end.
  var n = 1u;
  while (part(n) == 0) { n++; }
  let rounds = (p.blocks + ${deep - 1}) / ${deep};
  for (var round = 0u; round < rounds; round++) {
    let now = ${sides === 2 ? 'round & 1' : '0u'};
    workgroupBarrier();
    ${fetch('(round + 1)')}
    ${each(deep, products)}
    ${sides === 2 ? '' : 'workgroupBarrier();'}
    ${keep(sides === 2 ? '(1 - now)' : '0u')}
  }
  ${each(count, i => `store(firstOut + x + ${16 * (i % outs)}, firstRow + y + ${16 * Math.floor(i / outs)}, total${i});`)}
}`,
  };
};
