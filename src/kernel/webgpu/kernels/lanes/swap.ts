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
    /**
     * What is loaded of the tokens, so many of them (a power of two) before the first of them is used: `load` of token e in
     * a batch. `first` comes before the loop over batches; what was loaded of token e are variables whose names begin with
     * `of(e)`, and `next(e)` follows when they are no longer wanted. Past the last batch it asks for that one again if it is told
     * how many there are.
     */
    ahead(distance: number, id: string, load: (batch: string, e: number) => readonly string[], batches?: number) {
      const places = Math.min(distance, lanes);
      const of = (n: number) => `${id}_${n % places}_`;
      const fill = (word: string, batch: string, n: number) =>
        load(batch, tokens[n % lanes])
          .map((text, k) => `${word}${of(n)}${k} = ${text};`)
          .join(' ');
      return {
        first: each(places, n => fill('var ', '0', n)),
        of: (e: number) => of(tokens.indexOf(e)),
        next(e: number): string {
          const n = tokens.indexOf(e) + places;
          if (n < lanes) return fill('', 'batch', n);
          // The last batch is asked for twice: a branch would keep a compiler from asking early.
          return fill('', batches ? `min(batch + 1, ${batches - 1}u)` : '(batch + 1)', n);
        },
      };
    },
    /** Token e and those that are made right after it, so many at a time; none if it is one of the latter. */
    after(size: number, e: number): readonly number[] {
      const n = tokens.indexOf(e);
      return n % size === 0 ? tokens.slice(n, n + size) : [];
    },
    /**
     * Makes the sums of a group's tokens and has them swapped as soon as may be: token e is for lane e of the group.
     * `sum(e, v)` is what `make` made of it.
     */
    each(V: number, make: (e: number) => string, sum: (e: number, v: number) => string): string {
      const visit = (e: number, depth: number): string => {
        if (depth === 0) return `${make(e)}\n${each(V, v => `let swapped${e}_0_${v} = ${sum(e, v)};`, ' ')}`;
        const bit = bits[depth - 1];
        const [a, b] = [e, e + bit];
        return `${visit(a, depth - 1)}\n${visit(b, depth - 1)}
      ${each(V, v => `let swapped${a}_${depth}_${v} = swapped(swapped${a}_${depth - 1}_${v}, swapped${b}_${depth - 1}_${v}, ${bit}u);`, ' ')}`;
      };
      return visit(0, bits.length);
    },
  };
}
