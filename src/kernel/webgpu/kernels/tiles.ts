/**
 * Matrix products of many rows: a workgroup has a tile of weight rows by rows, so that what it reads of either serves
 * many products. Sums run in the order of matmul.ts.
 */
import type { Kernel } from '../gpu.ts';
import { BUNDLE } from '../weights.ts';
import { int8Buffers, int8Term, interfaceOf, type Matmul, nameOf, PARTS, part, takesInt8, textOf } from './matmul.ts';
import { pickMatrix, severalInterface, severalText } from './several.ts';
import { each } from './text.ts';

export interface Tile {
  /** Weight rows and rows that an invocation multiplies with each other. */
  outs: number;
  rows: number;
  /** Invocations of a team side by side: multiples of 8 over the weight rows, of 4 over the rows. */
  wide: number;
  high: number;
  /** Teams that share the parts of the sums among them: where there are few tiles to go round. */
  teams: number;
}

/** Weight rows and rows of a tile. */
export const outsOf = ({ outs, wide }: Tile): number => outs * wide;
export const rowsOf = ({ rows, high }: Tile): number => rows * high;

const threadsOf = ({ wide, high }: Tile) => wide * high;

/** Two rounds of int8 fit; of floats one does. */
const sidesOf = (m: Matmul) => (takesInt8(m) ? 2 : 1);

/** A tile, and smaller ones for adapters on which it does not fit: fewer teams first, which is slower and nothing else. */
export function smallerTiles(tile: Tile): Tile[] {
  if (tile.teams > 1) return [tile, ...smallerTiles({ ...tile, teams: tile.teams / 2 })];
  if (tile.rows > 1) return [tile, ...smallerTiles({ ...tile, rows: Math.floor(tile.rows / 2) })];
  if (tile.outs > 1) return [tile, ...smallerTiles({ ...tile, outs: Math.floor(tile.outs / 2) })];
  return [tile];
}

/**
 * A tile a workgroup, a block at a time: what it needs of the next one is asked for before the products of this one are
 * made, and put beside it. A subgroup of 32 has 8 by 4 invocations, so that it reads few addresses. Teams go through
 * parts of their own and in the end add up what they found in turn, in the order of the parts. Tiles of several matrices
 * (`count`) that share their input follow one another.
 */
export const matmulTile = (m: Matmul, tile: Tile, count = 1): Kernel => {
  const { outs, rows, wide, high, teams } = tile;
  const [N, R, T] = [outsOf(tile), rowsOf(tile), threadsOf(tile)];
  const sides = sidesOf(m);
  const sums = outs * rows;
  const own = PARTS / teams;
  /** Weights and rows that an invocation brings: numbers t, T + t, ... of the tile's, weights before rows. */
  const brought = Array.from({ length: Math.ceil((N + R) / T) }, (_, k) => ({ k, first: k * T }));
  const share = ({ first }: { first: number }, weights: string, input: string) => {
    const [all, none] = [first + T <= N, first >= N];
    const some = first + T <= N + R ? `{ ${input} }` : `if (t < ${N + R - first}) { ${input} }`;
    return all ? weights : none ? some : `if (t < ${N - first}) { ${weights} } else ${some}`;
  };
  const fetch = (at: string) =>
    brought
      .map(b =>
        share(
          b,
          `weights${b.k} = load_weights(from${b.k} + min(${at}, p.blocks - 1), r${b.k});`,
          `input${b.k} = load_input(from${b.k} + min(${at}, p.blocks - 1));`,
        ),
      )
      .join('\n');
  const place = (side: string, of: number) => `(${side} * ${teams} + team) * ${of}`;
  const keep = (side: string) =>
    brought
      .map(b =>
        share(
          b,
          `weights[${place(side, N)} + t + ${b.first}] = weights${b.k};`,
          `input[${place(side, R)} + t + ${b.first} - ${N}] = input${b.k};`,
        ),
      )
      .join('\n');
  const kept = (i: number) =>
    teams === 1 ? `total${i} += acc${i};` : `kept[(n - 1 - team * ${own}) * ${sums} + ${i}] = acc${i};`;
  const products = `
    if (b < end) {
      ${each(outs, j => `let w${j} = weights[${place('now', N)} + x + ${wide * j}];`)}
      ${each(rows, i => `{ let i = input[${place('now', R)} + y + ${high * i}]; ${each(outs, j => `acc${outs * i + j} = term(acc${outs * i + j}, w${j}, i);`)} }`)}
      while (b + 1 == part(n) && n <= lastPart) {
        ${each(sums, i => `${kept(i)} acc${i} = 0.0;`)}
        n++;
      }
    }`;
  const stored = (i: number, sum: string) =>
    `store(firstOut + x + ${wide * (i % outs)}, firstRow + y + ${high * Math.floor(i / outs)}, ${sum});`;
  const handed = (i: number) => `handed[${i} * ${T} + t]`;
  const added = `
  for (var turn = 0u; turn < ${teams}; turn++) {
    workgroupBarrier();
    if (team == turn) {
      ${each(
        sums,
        i => `{
        var sum = select(${handed(i)}, 0.0, turn == 0);
        for (var k = 0u; k < ${own}; k++) { sum += kept[k * ${sums} + ${i}]; }
        if (turn == ${teams - 1}) { ${stored(i, 'sum')} } else { ${handed(i)} = sum; }
      }`,
      )}
    }
  }`;
  return {
    name: `matmul ${nameOf(m)} tile ${N} x ${R} by ${wide} x ${high} x ${teams}${count > 1 ? ` of ${count}` : ''}`,
    ...(count > 1 ? severalInterface(int8Buffers, count) : interfaceOf(m)),
    size: T * teams,
    body: /* wgsl */ `
${count > 1 ? `${severalText(m, count)}\n${int8Term(m.format)}` : textOf(m)}
${part}
var<workgroup> weights: array<Weights, ${sides * teams * N}>;
var<workgroup> input: array<Input, ${sides * teams * R}>;
${teams > 1 ? `var<workgroup> handed: array<f32, ${N * R}>;` : ''}
fn main(group: vec3u, lane: u32) {
  let team = ${teams > 1 ? `lane / ${T}` : '0u'};
  let t = ${teams > 1 ? `lane % ${T}` : 'lane'};
  let x = t % 8 + t / 32 % ${wide / 8} * 8;
  let y = t / 8 % 4 + t / ${4 * wide} * 4;
  ${pickMatrix(count, N)}
  let firstRow = group.y * ${R};
  ${brought
    .map(b =>
      [
        `var weights${b.k}: Weights; var input${b.k}: Input; var from${b.k}: u32; var r${b.k}: u32;`,
        share(
          b,
          `let o = min(firstOut + t + ${b.first}, outs - 1); from${b.k} = o / ${BUNDLE} * p.blocks; r${b.k} = o % ${BUNDLE};`,
          `from${b.k} = min(firstRow + t + ${b.first} - ${N}, p.inputs - 1) * p.blocks;`,
        ),
      ].join('\n  '),
    )
    .join('\n  ')}
  ${each(sums, i => `${teams === 1 ? `var total${i} = 0.0;` : ''} var acc${i} = 0.0;`)}
  ${teams > 1 ? `var kept: array<f32, ${own * sums}>;` : ''}
  let lastPart = (team + 1) * ${own};
  let end = part(lastPart);
  var b = part(team * ${own});
  // The first part that is not finished, counted from its end.
  var n = team * ${own} + 1;
  while (part(n) == b && n < lastPart) { n++; }
  ${fetch('b')}
  ${keep('0u')}
  let rounds = (p.blocks + ${teams - 1}) / ${teams};
  for (var round = 0u; round < rounds; round++) {
    let now = ${sides === 2 ? 'round & 1' : '0u'};
    workgroupBarrier();
    ${fetch('b + 1')}
    ${products}
    b++;
    ${sides === 2 ? '' : 'workgroupBarrier();'}
    ${keep(sides === 2 ? '(1 - now)' : '0u')}
  }
  ${teams > 1 ? added : each(sums, i => stored(i, `total${i}`))}
}`,
  };
};
