/**
 * Combines attention splits where values are rotated by a signed Hadamard transform: one workgroup per row and query
 * head. State n belongs to subgroup n % 4, with four dims per lane; every subgroup then gets the sum and transforms it back.
 */

import { type Kernel, readBuffer, u32, writeBuffer } from '../../kernel.ts';
import { int8Buffers, toInt8 } from '../activations.ts';
import { LANES } from '../one-subgroup/subgroup.ts';
import { hadamard } from '../one-subgroup/transform-query.ts';
import { type CodecTransform, type CombineOptions, combineName, ROW_WORDS, stateFloats } from '../transform.ts';
import { unroll } from '../unroll.ts';
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
  const { rounds, active, dim } = rotation;
  const stateOf = (first: string, u: string) => `((${first} + ${u}) * ${heads} + head) * ${stateFloats(D) / 4}`;
  const maxOfStates = (states: string, first: string, count: string) => `
  for (var u = local_index; u < ${count}; u += ${WORKGROUP_SIZE}) { m = max(m, ${states}[${stateOf(first, 'u')} + ${D / 4}].x); }`;
  const nth = `u + $(k * ${SUBGROUPS})`;
  /** Loads the next states of a subgroup: `stateK` (m and l) and `oK_R`. */
  const loadStates = (id: Kind, states: string, first: string, count: string) => `@unroll(k, ${PREFETCH[id]}) {{
      let at = ${stateOf(first, `min(${nth}, max(${count}, 1u) - 1)`)};
      ${id}_state$k = ${states}[at + ${D / 4}];
      @unroll(r, ${rounds}) ${id}_o$k_$r = ${states}[at + min(lane, ${active - 1}u) + $(r * ${LANES})];
    }}`;
  const declareStates = (id: Kind) => `@unroll(k, ${PREFETCH[id]}) {
    var ${id}_state$k: vec4f;
    @unroll(r, ${rounds}) var ${id}_o$k_$r: vec4f;
  }`;
  /** Adds all states to `toR`, and their normalizers to l. The first were loaded before everything else. */
  const merge = (id: Kind, states: string, first: string, count: string, to: string) => `
  {
    @unroll(r, ${rounds}) var sum$r = vec4f(0.0);
    var length = 0.0;
    for (var u = subgroup; u < ${count}; u += ${SUBGROUPS * PREFETCH[id]}) {
      if (u != subgroup) { ${loadStates(id, states, first, count)} }
      @unroll(k, ${PREFETCH[id]}) {{
        let weight = select(0.0, exp(${id}_state$k.x - m), ${nth} < ${count});
        length = fma(weight, ${id}_state$k.y, length);
        @unroll(r, ${rounds}) sum$r = fma(vec4f(weight), ${id}_o$k_$r, sum$r);
      }}
    }
    workgroupBarrier();
    @unroll(r, ${rounds}) sums[subgroup][lane + $(r * ${LANES})] = sum$r;
    if (lane == 0) { subgroup_values[subgroup] = length; }
    workgroupBarrier();
    @unroll(r, ${rounds}) ${to}$r += ${sumOfFour(t => `sums[${t}][lane + $(r * ${LANES})]`)};
    l += ${sumOfFour(t => `subgroup_values[${t}]`)};
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
    body: unroll(/* wgsl */ `
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
  @unroll(r, ${rounds}) let signs$r = vec4f(@list(i, 4, signs[${dim}]));
  var m = ${sinkLogits ? 'sink_logits[head]' : '-3e38'};
  ${maxOfStates('states', 'data[at + 1]', 'data[at + 2]')}
  ${maxOfStates('f16_states', 'data[at + 3]', 'data[at + 4]')}
  m = reduce_max(vec4f(m)).x;
  if (lane == 0) { subgroup_values[subgroup] = m; }
  workgroupBarrier();
  m = max(max(max(subgroup_values[0], subgroup_values[1]), subgroup_values[2]), subgroup_values[3]);
  var l = 0.0;
  @unroll(r, ${rounds}) var x$r = vec4f(0.0);
  ${merge('page', 'states', 'data[at + 1]', 'data[at + 2]', 'x')}
  ${rotation.text}
  @unroll(r, ${rounds}) x$r *= signs$r;
  ${d.mean ? `@unroll(r, ${rounds}) x$r = fma(vec4f(l), vec4f(@list(i, 4, mean[head / ${heads / kvHeads} * ${D} + ${dim}])), x$r);` : ''}
  ${merge('f16', 'f16_states', 'data[at + 3]', 'data[at + 4]', 'x')}
  ${sinkLogits ? 'l += exp(sink_logits[head] - m);' : ''}
  @unroll(r, ${rounds}) {
    x$r /= l;
    if (subgroup == 0 && live) { @unroll(i, 4) out[start + ${dim}] = x$r[$i]; }
  }
  ${int8 ? `@unroll(r, ${rounds}) to_int8(x$r, start / 4 + lane + $(r * ${LANES}), local_index, local_index < ${active});` : ''}
}`),
  };
}

/** The sum of a value of each subgroup, added in pairs. */
const sumOfFour = (text: (t: number) => string): string => `((${text(0)} + ${text(1)}) + (${text(2)} + ${text(3)}))`;
