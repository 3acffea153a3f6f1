/**
 * Combines attention splits where values are rotated by a signed Hadamard transform: one workgroup per row and query
 * head. State n belongs to subgroup n % 4, with four dims per lane; every subgroup then gets the sum and transforms it back.
 */

import { type Kernel, readBuffer, u32, writeBuffer } from '../../kernel.ts';
import { int8Buffers, toInt8 } from '../activations.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import { hadamard } from '../one-subgroup/transform-query.ts';
import { each } from '../snippets.ts';
import { type CodecTransform, type CombineOptions, combineName, ROW_WORDS, stateFloats } from '../transform.ts';
import { SUBGROUPS, subgroupFunctions, WORKGROUP_SIZE } from './subgroup.ts';

/** States prefetched per subgroup: pages have many, f16 tokens a few. */
const PREFETCH = { page: 8, f16: 1 };
type Kind = keyof typeof PREFETCH;

/** What `combineSplits` (../transform.ts) computes with a matrix. */
export function combineSplitsHadamard(
  d: CodecTransform,
  { int8, sinkLogits }: CombineOptions,
  hasSubgroups: boolean,
): Kernel {
  const { headDim: D, heads, kvHeads } = d;
  const rotation = hadamard(D);
  const { rounds, active, all, dims } = rotation;
  const stateOf = (first: string, u: string) => `((${first} + ${u}) * ${heads} + head) * ${stateFloats(D) / 4}`;
  const maxOfStates = (states: string, first: string, count: string) => `
  for (var u = local_index; u < ${count}; u += ${WORKGROUP_SIZE}) { m = max(m, ${states}[${stateOf(first, 'u')} + ${D / 4}].x); }`;
  const nth = (k: number) => `u + ${k * SUBGROUPS}`;
  /** Loads the next states of a subgroup: `stateK` (m and l) and `oK_R`. */
  const loadStates = (id: Kind, states: string, first: string, count: string) =>
    each(
      PREFETCH[id],
      k =>
        `{ let at = ${stateOf(first, `min(${nth(k)}, max(${count}, 1u) - 1)`)}; ${id}_state${k} = ${states}[at + ${D / 4}]; ${all(r => `${id}_o${k}_${r} = ${states}[at + min(lane, ${active - 1}u) + ${r * LANES}];`)} }`,
    );
  const declareStates = (id: Kind) =>
    each(PREFETCH[id], k => `var ${id}_state${k}: vec4f; ${all(r => `var ${id}_o${k}_${r}: vec4f;`)}`);
  /** Adds all states to `toR`, and their normalizers to l. The first were loaded before everything else. */
  const merge = (id: Kind, states: string, first: string, count: string, to: string) => `
  {
    ${all(r => `var sum${r} = vec4f(0.0);`)}
    var length = 0.0;
    for (var u = subgroup; u < ${count}; u += ${SUBGROUPS * PREFETCH[id]}) {
      if (u != subgroup) { ${loadStates(id, states, first, count)} }
      ${each(PREFETCH[id], k => `{ let weight = select(0.0, exp(${id}_state${k}.x - m), ${nth(k)} < ${count}); length = fma(weight, ${id}_state${k}.y, length); ${all(r => `sum${r} = fma(vec4f(weight), ${id}_o${k}_${r}, sum${r});`)} }`)}
    }
    workgroupBarrier();
    ${all(r => `sums[subgroup][lane + ${r * LANES}] = sum${r};`)}
    if (lane == 0) { subgroup_values[subgroup] = length; }
    workgroupBarrier();
    ${all(r => `${to}${r} += ${pairwiseSum(SUBGROUPS, t => `sums[${t}][lane + ${r * LANES}]`)};`)}
    l += ${pairwiseSum(SUBGROUPS, t => `subgroup_values[${t}]`)};
  }`;
  return {
    name: `${combineName(d, { int8, sinkLogits })} four subgroups${hasSubgroups ? ' subgroup ops' : ''}`,
    summary: 'Combines the attention splits of a row, merges pages with f16 tokens, and rotates the output back.',
    params: u32('table', 'rows'),
    buffers: [
      readBuffer('data', 'u32'),
      readBuffer('states', 'vec4f'),
      readBuffer('f16_states', 'vec4f'),
      readBuffer('signs', 'f32'),
      ...(d.mean ? [readBuffer('mean', 'f32')] : []),
      ...(sinkLogits ? [readBuffer('sink_logits', 'f32')] : []),
      writeBuffer('out', 'f32'),
      ...(int8 ? int8Buffers : []),
    ],
    size: WORKGROUP_SIZE,
    enable: hasSubgroups ? ['subgroups'] : [],
    body: /* wgsl */ `
${subgroupFunctions(hasSubgroups)}
${int8 ? toInt8(WORKGROUP_SIZE) : ''}
var<workgroup> sums: array<array<vec4f, ${rounds * LANES}>, ${SUBGROUPS}>;
var<workgroup> subgroup_values: array<f32, ${SUBGROUPS}>;
fn main(group: vec3u, local_index: u32) {
  lane = local_index % ${LANES};
  subgroup = local_index / ${LANES};
  let at = p.table + p.rows + ${ROW_WORDS} * group.y;
  let head = group.x;
  let start = (data[at] * ${heads} + head) * ${D};
  let live = lane < ${active};
  ${declareStates('page')} ${declareStates('f16')}
  {
    let u = subgroup;
    ${loadStates('page', 'states', 'data[at + 1]', 'data[at + 2]')}
    ${loadStates('f16', 'f16_states', 'data[at + 3]', 'data[at + 4]')}
  }
  ${all(r => `let signs${r} = vec4f(${each(4, i => `signs[${dims(r, i)}]`, ', ')});`)}
  var m = ${sinkLogits ? 'sink_logits[head]' : '-3e38'};
  ${maxOfStates('states', 'data[at + 1]', 'data[at + 2]')}
  ${maxOfStates('f16_states', 'data[at + 3]', 'data[at + 4]')}
  m = reduce_max(vec4f(m)).x;
  if (lane == 0) { subgroup_values[subgroup] = m; }
  workgroupBarrier();
  m = ${Array.from({ length: SUBGROUPS }, (_, t) => `subgroup_values[${t}]`).reduce((a, b) => `max(${a}, ${b})`)};
  var l = 0.0;
  ${all(r => `var x${r} = vec4f(0.0);`)}
  ${merge('page', 'states', 'data[at + 1]', 'data[at + 2]', 'x')}
  ${rotation.text}
  ${all(r => `x${r} *= signs${r};`)}
  ${d.mean ? all(r => `x${r} = fma(vec4f(l), vec4f(${each(4, i => `mean[head / ${heads / kvHeads} * ${D} + ${dims(r, i)}]`, ', ')}), x${r});`) : ''}
  ${merge('f16', 'f16_states', 'data[at + 3]', 'data[at + 4]', 'x')}
  ${sinkLogits ? 'l += exp(sink_logits[head] - m);' : ''}
  ${all(r => `x${r} /= l; if (subgroup == 0 && live) { ${each(4, i => `out[start + ${dims(r, i)}] = x${r}[${i}];`, ' ')} }`)}
  ${int8 ? all(r => `to_int8(x${r}, start / 4 + lane + ${r * LANES}, local_index, local_index < ${active});`) : ''}
}`,
  };
}

/** The sum of `count` terms, added in pairs. */
const pairwiseSum = (count: number, text: (n: number) => string): string =>
  count === 1
    ? text(0)
    : `(${pairwiseSum(count / 2, n => text(n))} + ${pairwiseSum(count / 2, n => text(count / 2 + n))})`;
