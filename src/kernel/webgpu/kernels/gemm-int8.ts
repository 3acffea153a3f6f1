/**
 * Tiled GEMM for many rows: a workgroup computes a tile of the output. Named for its main use, int8 activations; float
 * activations use it too. Sums run in the order of gemv.ts.
 */
import type { Kernel } from '../kernel.ts';
import { ROW_TILE } from '../weights.ts';
import {
  int8Buffers,
  int8Term,
  type MatmulVariant,
  matmulBindings,
  matmulText,
  SPLIT_K,
  splitStart,
  usesInt8,
  variantName,
} from './gemv.ts';
import { groupedBindings, groupedStore, groupedWeights, selectMatrix } from './grouped-gemm.ts';
import { unroll } from './unroll.ts';

export interface Tile {
  /** Weight rows and rows per invocation. */
  outsPerLane: number;
  rowsPerLane: number;
  /** Invocations along the weight rows (a multiple of 8) and along the rows (a multiple of 4). */
  lanesX: number;
  lanesY: number;
  /** Groups of invocations that divide the SPLIT_K ranges among them: for matrices of few tiles. */
  splitGroups: number;
}

/** Weight rows and rows per tile. */
export const tileOuts = ({ outsPerLane, lanesX }: Tile): number => outsPerLane * lanesX;
export const tileRows = ({ rowsPerLane, lanesY }: Tile): number => rowsPerLane * lanesY;

const lanesPerGroup = ({ lanesX, lanesY }: Tile) => lanesX * lanesY;

/** Double buffering for int8; float blocks have room for one stage. */
const stagesOf = (m: MatmulVariant) => (usesInt8(m) ? 2 : 1);

/** A tile, and smaller ones for adapters with lower limits. Fewer split groups come first: that costs only speed. */
export function smallerTiles(tile: Tile): Tile[] {
  if (tile.splitGroups > 1) return [tile, ...smallerTiles({ ...tile, splitGroups: tile.splitGroups / 2 })];
  if (tile.rowsPerLane > 1) return [tile, ...smallerTiles({ ...tile, rowsPerLane: Math.floor(tile.rowsPerLane / 2) })];
  if (tile.outsPerLane > 1) return [tile, ...smallerTiles({ ...tile, outsPerLane: Math.floor(tile.outsPerLane / 2) })];
  return [tile];
}

/**
 * One tile per workgroup, one block at a time: the next block is loaded into registers while this one is multiplied, then
 * stored to the other stage. A subgroup of 32 covers 8 x 4 invocations, so that it reads few addresses. Split groups sum
 * different ranges, and add them up in order at the end. `count`: matrices that share their input (grouped GEMM).
 */
export const gemmInt8 = (m: MatmulVariant, tile: Tile, count = 1): Kernel => {
  const { outsPerLane, rowsPerLane, lanesX, lanesY, splitGroups } = tile;
  const [N, R, T] = [tileOuts(tile), tileRows(tile), lanesPerGroup(tile)];
  const stages = stagesOf(m);
  const sums = outsPerLane * rowsPerLane;
  const splitsPerGroup = SPLIT_K / splitGroups;
  /** What an invocation loads: weight rows and rows t, T + t, ... of the tile, weight rows first. */
  const loads = Array.from({ length: Math.ceil((N + R) / T) }, (_, k) => ({ k, first: k * T }));
  const share = ({ first }: { first: number }, weights: string, input: string) => {
    const [all, none] = [first + T <= N, first >= N];
    const inputOnly = first + T <= N + R ? `{ ${input} }` : `if (t < ${N + R - first}) { ${input} }`;
    return all ? weights : none ? inputOnly : `if (t < ${N - first}) { ${weights} } else ${inputOnly}`;
  };
  const fetch = (at: string) =>
    loads
      .map(b =>
        share(
          b,
          `weights${b.k} = load_weights(from${b.k} + min(${at}, p.blocks - 1), r${b.k});`,
          `input${b.k} = load_input(from${b.k} + min(${at}, p.blocks - 1));`,
        ),
      )
      .join('\n');
  const place = (stage: string, of: number) => `(${stage} * ${splitGroups} + split_group) * ${of}`;
  const keep = (stage: string) =>
    loads
      .map(b =>
        share(
          b,
          `weights[${place(stage, N)} + t + ${b.first}] = weights${b.k};`,
          `input[${place(stage, R)} + t + ${b.first} - ${N}] = input${b.k};`,
        ),
      )
      .join('\n');
  const partial =
    splitGroups === 1
      ? 'total$i += acc$i;'
      : `partial[(n - 1 - split_group * ${splitsPerGroup}) * ${sums} + $i] = acc$i;`;
  const products = `
    if (b < end) {
      @unroll(j, ${outsPerLane}) let w$j = weights[${place('now', N)} + x + $(${lanesX} * j)];
      @unroll(i, ${rowsPerLane}) {{
        let i = input[${place('now', R)} + y + $(${lanesY} * i)];
        @unroll(j, ${outsPerLane}) acc$(${outsPerLane} * i + j) = term(acc$(${outsPerLane} * i + j), w$j, i);
      }}
      while (b + 1 == split_start(n) && n <= last_split) {
        @unroll(i, ${sums}) { ${partial} acc$i = 0.0; }
        n++;
      }
    }`;
  const stored = (sum: string) =>
    `store(firstOut + x + $(${lanesX} * (i % ${outsPerLane})), firstRow + y + $(${lanesY} * (i / ${outsPerLane})), ${sum});`;
  const carried = `carried[$i * ${T} + t]`;
  const added = `
  for (var current_group = 0u; current_group < ${splitGroups}; current_group++) {
    workgroupBarrier();
    if (split_group == current_group) {
      @unroll(i, ${sums}) {{
        var sum = select(${carried}, 0.0, current_group == 0);
        for (var k = 0u; k < ${splitsPerGroup}; k++) { sum += partial[k * ${sums} + $i]; }
        if (current_group == ${splitGroups - 1}) { ${stored('sum')} } else { ${carried} = sum; }
      }}
    }
  }`;
  return {
    name: `gemm ${variantName(m)} tile ${N} x ${R} by ${lanesX} x ${lanesY} x ${splitGroups}${count > 1 ? ` of ${count}` : ''}`,
    summary: 'Tiled GEMM.',
    ...(count > 1 ? groupedBindings(int8Buffers, count) : matmulBindings(m)),
    size: T * splitGroups,
    body: unroll(/* wgsl */ `
${count > 1 ? `${groupedWeights(m, count)}\n${groupedStore(count)}\n${int8Term(m.format)}` : matmulText(m)}
${splitStart}
var<workgroup> weights: array<Weights, ${stages * splitGroups * N}>;
var<workgroup> input: array<Input, ${stages * splitGroups * R}>;
${splitGroups > 1 ? `var<workgroup> carried: array<f32, ${N * R}>;` : ''}
fn main(group: vec3u, lane: u32) {
  let split_group = ${splitGroups > 1 ? `lane / ${T}` : '0u'};
  let t = ${splitGroups > 1 ? `lane % ${T}` : 'lane'};
  let x = t % 8 + t / 32 % ${lanesX / 8} * 8;
  let y = t / 8 % 4 + t / ${4 * lanesX} * 4;
  ${selectMatrix(count, N)}
  let firstRow = group.y * ${R};
  ${loads
    .map(b =>
      [
        `var weights${b.k}: Weights; var input${b.k}: Input; var from${b.k}: u32; var r${b.k}: u32;`,
        share(
          b,
          `let o = min(firstOut + t + ${b.first}, outs - 1); from${b.k} = o / ${ROW_TILE} * p.blocks; r${b.k} = o % ${ROW_TILE};`,
          `from${b.k} = min(firstRow + t + ${b.first} - ${N}, p.inputs - 1) * p.blocks;`,
        ),
      ].join('\n  '),
    )
    .join('\n  ')}
  @unroll(i, ${sums}) { ${splitGroups === 1 ? 'var total$i = 0.0;' : ''} var acc$i = 0.0; }
  ${splitGroups > 1 ? `var partial: array<f32, ${splitsPerGroup * sums}>;` : ''}
  let last_split = (split_group + 1) * ${splitsPerGroup};
  let end = split_start(last_split);
  var b = split_start(split_group * ${splitsPerGroup});
  // The end of the current range.
  var n = split_group * ${splitsPerGroup} + 1;
  while (split_start(n) == b && n < last_split) { n++; }
  ${fetch('b')}
  ${keep('0u')}
  let rounds = (p.blocks + ${splitGroups - 1}) / ${splitGroups};
  for (var round = 0u; round < rounds; round++) {
    let now = ${stages === 2 ? 'round & 1' : '0u'};
    workgroupBarrier();
    ${fetch('b + 1')}
    ${products}
    b++;
    ${stages === 2 ? '' : 'workgroupBarrier();'}
    ${keep(stages === 2 ? '(1 - now)' : '0u')}
  }
  ${splitGroups > 1 ? added : `@unroll(i, ${sums}) ${stored('total$i')}`}
}`),
  };
};
