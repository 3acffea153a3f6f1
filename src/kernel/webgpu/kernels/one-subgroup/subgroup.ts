/**
 * How the 32 lanes of a workgroup exchange values: by subgroup operations where one subgroup has all of them, else
 * through workgroup memory, with the same bits. All lanes must call these.
 */

/** Lanes per subgroup (real or emulated). */
export const LANES = 32;

/** A butterfly reduction: all lanes get the same result. `next` combines the values of a pair of lanes. */
const butterfly = (name: string, next: string): string => `fn ${name}(x: vec4f) -> vec4f {
  var all = x;
  for (var by = 1u; by < ${LANES}; by *= 2) { all = ${next}; }
  return all;
}`;

/** GPUs reduce integer maxima of a subgroup in one step, and floats compare like integers but for the sign. */
const reduceMaxByIntegers = /* wgsl */ `
/** The bits of floats as integers of the same order, and back. */
fn sortable(x: vec4i) -> vec4i { return x ^ ((x >> vec4u(31)) & vec4i(0x7fffffff)); }
fn reduce_max(x: vec4f) -> vec4f { return bitcast<vec4f>(sortable(subgroupMax(sortable(bitcast<vec4i>(x))))); }
fn reduce_max_nonnegative(x: f32) -> f32 { return bitcast<f32>(subgroupMax(bitcast<u32>(x))); }`;

/**
 *   shuffle_xor(x, by)         the value of lane ^ by
 *   reduce_max(x)              the maximum over all lanes
 *   reduce_max_nonnegative(x)  the same of one float per lane, none below 0
 *   reduce_add(x)              the sum over all lanes, the same bits in each
 *
 * With several subgroups of 32 lanes per workgroup, each works for itself: `lane` is a lane's number in subgroup
 * `subgroup`.
 */
export function subgroupFunctions(hasSubgroups: boolean, subgroups = 1): string {
  const first = subgroups > 1 ? `${LANES} * subgroup + ` : '';
  const shuffle_xor = hasSubgroups
    ? 'fn shuffle_xor(x: vec4f, by: u32) -> vec4f { return subgroupShuffleXor(x, by); }'
    : `var<workgroup> exchange: array<vec4f, ${subgroups * LANES}>;
fn shuffle_xor(x: vec4f, by: u32) -> vec4f {
  workgroupBarrier();
  exchange[${first}lane] = x;
  workgroupBarrier();
  return exchange[${first}(lane ^ by)];
}`;
  return `${shuffle_xor}
${
  hasSubgroups
    ? reduceMaxByIntegers
    : `${butterfly('reduce_max', 'max(all, shuffle_xor(all, by))')}
fn reduce_max_nonnegative(x: f32) -> f32 { return reduce_max(vec4f(x)).x; }`
}
${butterfly('reduce_add', 'all + shuffle_xor(all, by)')}`;
}

/**
 * For lanes in runs of neighbours, where run n needs the value `names[n]` (a power of two of them). `selectByRun` selects
 * it where every lane has all values. `reduceScatterRuns` declares `result`, its sum over the lanes at the same position
 * of every run; `reduceAddRun` then adds that up over the run. Runs are distinguished by the bits of `lane`: comparing a
 * quotient was miscompiled on an H200.
 */
export function selectByRun(names: readonly string[], by = LANES / 2): string {
  if (names.length === 1) return names[0];
  const half = names.length / 2;
  return `select(${selectByRun(names.slice(0, half), by / 2)}, ${selectByRun(names.slice(half), by / 2)}, (lane & ${by}) != 0)`;
}

export function reduceScatterRuns(names: readonly string[], result: string): string {
  let text = '';
  let all = names;
  for (let by = LANES / 2; all.length > 1; by /= 2) {
    const [half, list] = [all.length / 2, all];
    const pick = (i: number, j: number) => `select(${list[i]}, ${list[j]}, (lane & ${by}) != 0)`;
    all = Array.from({ length: half }, (_, i) => `${result}_${by}_${i}`);
    for (const [i, sum] of all.entries())
      text += `let ${sum} = ${pick(i, i + half)} + shuffle_xor(${pick(i + half, i)}, ${by});\n`;
  }
  return `${text}var ${result} = ${all[0]};`;
}

export const reduceAddRun = (name: string, runs: number): string =>
  Array.from({ length: Math.log2(LANES / runs) }, (_, i) => `${name} += shuffle_xor(${name}, ${2 ** i});`).join(' ');
