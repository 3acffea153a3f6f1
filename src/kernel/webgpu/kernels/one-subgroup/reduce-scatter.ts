/**
 * Reduce-scatter by recursive halving, for the lanes that share a token: each has partial sums of as many tokens as
 * there are lanes; pairs of lanes exchange half of theirs until each lane has one complete token.
 */

/** For groups of so many lanes, a power of two; the lanes furthest apart (or neighbours) exchange first. */
export function reduceScatter(lanes: number, neighbours: boolean) {
  const masks = Array.from({ length: Math.log2(lanes) }, (_, n) => 2 ** n);
  if (!neighbours) masks.reverse();
  const order = (e: number, depth: number): number[] =>
    depth === 0 ? [e] : [...order(e, depth - 1), ...order(e + masks[depth - 1], depth - 1)];
  const tokens = order(0, masks.length);
  return {
    text: /* wgsl */ `
/** Two lanes hold a and b: the lower gets the sum of both a, the other the sum of both b. */
fn exchange_add(a: vec4f, b: vec4f, by: u32) -> vec4f {
  let low = (lane & by) == 0;
  return select(b, a, low) + shuffle_xor(select(a, b, low), by);
}`,
    /** Prefix of the names of a lane's complete sums, one per vec4 v. */
    result: `partial0_${masks.length}_`,
    /**
     * Prefetches `distance` tokens (a power of two) ahead: `load` is the loads of token e of a batch. `first` comes
     * before the loop over batches; the variables of token e begin with `of(e)`, and `next(e)` comes after their last
     * use. With `batches` given, the last batch loads itself again instead of the one past it.
     */
    prefetch(distance: number, id: string, load: (batch: string, e: number) => readonly string[], batches?: number) {
      const slots = Math.min(distance, lanes);
      const of = (n: number) => `${id}_${n % slots}_`;
      const fill = (word: string, batch: string, n: number) =>
        load(batch, tokens[n % lanes])
          .map((text, k) => `${word}${of(n)}${k} = ${text};`)
          .join(' ');
      return {
        first: Array.from({ length: slots }, (_, n) => fill('var ', '0', n)).join('\n'),
        of: (e: number) => of(tokens.indexOf(e)),
        next(e: number): string {
          const n = tokens.indexOf(e) + slots;
          if (n < lanes) return fill('', 'batch', n);
          // The last batch is loaded twice: a branch would keep compilers from issuing the load early.
          return fill('', batches ? `min(batch + 1, ${batches - 1}u)` : '(batch + 1)', n);
        },
      };
    },
    /**
     * The group of `size` tokens computed together that starts with token e; empty if e is not the first of a group.
     */
    groupFrom(size: number, e: number): readonly number[] {
      const n = tokens.indexOf(e);
      return n % size === 0 ? tokens.slice(n, n + size) : [];
    },
    /**
     * Computes the sums of all tokens and exchanges them as early as possible: token e ends in lane e of the group.
     * `sum(e)` is the result of `make(e)` for the queries of vec4 `$v`.
     */
    reduce(V: number, make: (e: number) => string, sum: (e: number) => string): string {
      const visit = (e: number, depth: number): string => {
        if (depth === 0) return `${make(e)}\n@unroll(v, ${V}) let partial${e}_0_$v = ${sum(e)};`;
        const bit = masks[depth - 1];
        const [a, b] = [e, e + bit];
        return `${visit(a, depth - 1)}\n${visit(b, depth - 1)}
      @unroll(v, ${V}) let partial${a}_${depth}_$v = exchange_add(partial${a}_${depth - 1}_$v, partial${b}_${depth - 1}_$v, ${bit}u);`;
      };
      return visit(0, masks.length);
    },
  };
}
