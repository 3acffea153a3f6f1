/**
 * How the lanes that share a token add up what they have of it: each has sums of as many tokens as they are, and two by
 * two they swap half of what they have until each has one token whole.
 */
import { each } from '../text.ts';

/** For groups of so many lanes, a power of two; those furthest apart (or neighbours) swap first. */
export function swapping(lanes: number, neighbours: boolean) {
  const bits = Array.from({ length: Math.log2(lanes) }, (_, n) => 2 ** n);
  if (!neighbours) bits.reverse();
  const order = (e: number, depth: number): number[] =>
    depth === 0 ? [e] : [...order(e, depth - 1), ...order(e + bits[depth - 1], depth - 1)];
  const tokens = order(0, bits.length);
  return {
    text: /* wgsl */ `
/** Two lanes have a and b: the lower one gets the sum of both as, the other that of the bs. */
fn swapped(a: vec4f, b: vec4f, by: u32) -> vec4f {
  let low = (lane & by) == 0;
  return select(b, a, low) + across(select(a, b, low), by);
}`,
    /** What begins the names of a lane's own sums, those of vector V. */
    result: `swapped0_${bits.length}_`,
    /** The tokens in the order in which they are wanted, some at a time. */
    groups: (size: number) =>
      Array.from({ length: Math.ceil(lanes / size) }, (_, n) => tokens.slice(n * size, (n + 1) * size)),
    /**
     * Makes the sums of a group's tokens and has them swapped as soon as may be: token e is for lane e of the group.
     * `before(e)` comes before anything of it, and `sum(e, v)` is what `make` made.
     */
    each(
      V: number,
      before: (e: number) => string,
      make: (e: number) => string,
      sum: (e: number, v: number) => string,
    ): string {
      const visit = (e: number, depth: number): string => {
        if (depth === 0)
          return `${before(e)}\n${make(e)}\n${each(V, v => `let swapped${e}_0_${v} = ${sum(e, v)};`, ' ')}`;
        const bit = bits[depth - 1];
        const [a, b] = [e, e + bit];
        return `${visit(a, depth - 1)}\n${visit(b, depth - 1)}
      ${each(V, v => `let swapped${a}_${depth}_${v} = swapped(swapped${a}_${depth - 1}_${v}, swapped${b}_${depth - 1}_${v}, ${bit}u);`, ' ')}`;
      };
      return visit(0, bits.length);
    },
  };
}
