/**
 * Scalar quantizers for one coordinate of a random unit vector of dimension d, scaled by sqrt(d): approximately N(0, 1) for
 * d >= 64, the exact Beta marginal (1 - t^2)^((d-3)/2) below.
 *
 * The tables are constants, because the bytes of pages depend on them. The solver is used for small dimensions, and a test
 * checks the tables against it.
 */

/** Positive half of the Lloyd-Max centroids of N(0, 1) by bits. */
const GAUSSIAN: Record<number, number[]> = {
  1: [0.797885],
  2: [0.45278, 1.510418],
  3: [0.245094, 0.756005, 1.343909, 2.151946],
  4: [0.128395, 0.388048, 0.656759, 0.94234, 1.256231, 1.618046, 2.069017, 2.73259],
};

/** Optimal step of a mid-rise uniform quantizer for N(0, 1), by bits. */
const UNIFORM_STEP: Record<number, number> = { 2: 0.9965, 3: 0.5858, 4: 0.3354 };

/** What was solved for small dimensions, by bits and dimension: solving takes a tenth of a second. */
const solvedTables = new Map<string, number[]>();
const solvedSteps = new Map<string, number>();

function remember<Value>(solved: Map<string, Value>, bits: number, d: number, solve: () => Value): Value {
  const name = `${bits} ${d}`;
  const value = solved.get(name) ?? solve();
  solved.set(name, value);
  return value;
}

/** All 2^bits centroids, ascending, for a coordinate of sqrt(d) times a unit vector. */
export function lloydMaxTable(bits: number, d: number): Float64Array {
  const solve = () => solveLloydMax(bits, betaMarginal(d));
  const positive = d >= 64 ? GAUSSIAN[bits] : remember(solvedTables, bits, d, solve);
  return Float64Array.from([...positive.map(c => -c).reverse(), ...positive]);
}

/** The step of `tq2u tq3u tq4u`: values are (code + 1/2) step, codes -2^(bits-1) to 2^(bits-1) - 1. */
export function uniformStep(bits: number, d: number): number {
  const solve = () => solveUniformStep(bits, betaMarginal(d));
  return d >= 64 ? UNIFORM_STEP[bits] : remember(solvedSteps, bits, d, solve);
}

/** The index of the centroid nearest to x; ties round up. */
export function nearest(table: Float64Array, x: number): number {
  let low = 0;
  let high = table.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x < (table[middle] + table[middle + 1]) / 2) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The half x >= 0 of a symmetric density; not necessarily normalized. */
export interface HalfDensity {
  (x: number): number;
  limit: number;
}

export const gaussian: HalfDensity = Object.assign((x: number) => Math.exp((-x * x) / 2), { limit: 10 });

export function betaMarginal(d: number): HalfDensity {
  return Object.assign((x: number) => Math.max(0, 1 - (x * x) / d) ** ((d - 3) / 2), { limit: Math.sqrt(d) });
}

type Integral = (power: 0 | 1 | 2, from: number, to: number) => number;

/** The integral of x^power f(x), by Simpson's rule on a fine grid. */
export function moments(f: HalfDensity): Integral {
  const cells = 1 << 15;
  const h = f.limit / cells;
  // At the edges and the middles of all cells.
  const density = Float64Array.from({ length: 2 * cells + 1 }, (_, i) => f((i / 2) * h));
  const tables = [0, 1, 2].map(k => {
    const g = (i: number) => ((i / 2) * h) ** k * density[i];
    const table = new Float64Array(cells + 1);
    for (let i = 0; i < cells; i++) {
      table[i + 1] = table[i] + (h / 6) * (g(2 * i) + 4 * g(2 * i + 1) + g(2 * i + 2));
    }
    return table;
  });
  const upTo = (table: Float64Array, x: number) => {
    const position = Math.min(x / h, cells);
    const cell = Math.min(Math.floor(position), cells - 1);
    return table[cell] + (position - cell) * (table[cell + 1] - table[cell]);
  };
  return (power, from, to) => upTo(tables[power], to) - upTo(tables[power], from);
}

/** Positive half of the centroids that minimize the mean squared error: each is the mean of its cell. */
export function solveLloydMax(bits: number, f: HalfDensity): number[] {
  const integral = moments(f);
  const levels = 2 ** (bits - 1);
  let centroids = Array.from({ length: levels }, (_, i) => ((i + 0.5) / levels) * Math.min(3, f.limit));
  for (let round = 0; round < 5000; round++) {
    const edges = [0, ...centroids.slice(1).map((c, i) => (c + centroids[i]) / 2), f.limit];
    const next = centroids.map((_, i) => integral(1, edges[i], edges[i + 1]) / integral(0, edges[i], edges[i + 1]));
    const moved = Math.max(...next.map((c, i) => Math.abs(c - centroids[i])));
    centroids = next;
    if (moved < 1e-11) break;
  }
  return centroids;
}

/** Mean squared error over the variance, for a quantizer with these centroids and cell `edges`. */
export function distortion(centroids: number[], edges: number[], integral: Integral): number {
  let error = 0;
  for (let i = 0; i < centroids.length; i++) {
    const [c, from, to] = [centroids[i], edges[i], edges[i + 1]];
    error += integral(2, from, to) - 2 * c * integral(1, from, to) + c * c * integral(0, from, to);
  }
  return error / integral(2, edges[0], edges[edges.length - 1]);
}

/** The optimal step, by golden-section search: the distortion has a single minimum. */
export function solveUniformStep(bits: number, f: HalfDensity): number {
  const integral = moments(f);
  const levels = 2 ** (bits - 1);
  const error = (step: number) => {
    const centroids = Array.from({ length: levels }, (_, i) => (i + 0.5) * step);
    const edges = Array.from({ length: levels + 1 }, (_, i) => (i === levels ? f.limit : Math.min(i * step, f.limit)));
    return distortion(centroids, edges, integral);
  };
  const golden = (Math.sqrt(5) - 1) / 2;
  let [low, high] = [0.01, 3];
  while (high - low > 1e-6) {
    const [a, b] = [high - golden * (high - low), low + golden * (high - low)];
    if (error(a) < error(b)) high = b;
    else low = a;
  }
  return (low + high) / 2;
}
