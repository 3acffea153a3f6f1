/**
 * Reads a grammar symbol by symbol. A state is the set of all places in the graph where the text so far may be, each with
 * the calls that it returns to. States and their transitions are computed when they are first met and then kept, so that
 * reading a symbol is a look-up most of the time.
 */
import { InputError } from '../../util/errors.ts';
import type { Grammar } from './expression.ts';
import { compileNodes, type Node } from './nodes.ts';
import type { Vocabulary } from './vocabulary.ts';

/** A call to return to, and how often its part has run. */
interface Frame {
  id: number;
  /** Equal for frames that no single token can tell apart: both counters are far from their limits. */
  shape: number;
  node: Node;
  times: number;
  parent?: Frame;
}

interface Place {
  node: Node;
  frame?: Frame;
}

export interface State {
  readonly places: readonly Place[];
  /** Whether the text may end here. */
  readonly isEnd: boolean;
  /** By symbol; undefined: not computed yet; null: not allowed. */
  readonly next: (State | null | undefined)[];
  /** How often all states had been dropped when `next` was computed. */
  generation: number;
  readonly shape: string;
}

/**
 * Limits that only hostile grammars reach. Work is counted in steps of about 0.1 µs: all other answers wait meanwhile. A
 * token may use what has been saved up, at most tens of milliseconds, and each token saves a little. With a vocabulary of
 * 150,000 tokens, a token of a usual schema takes up to 16,000 steps when its state is first met, and none later; with 128
 * tools up to 40,000.
 */
const MAX_PLACES = 4096;
const MAX_WORK = 200_000;
const WORK_PER_TOKEN = 40_000;
/** Steps of a place in a state, of a new frame and of a new node. */
const PLACE_WORK = 4;
const FRAME_WORK = 8;
const NODE_WORK = 8;
/** States and masks that are kept; beyond that all are computed again when they are met. */
const MAX_STATES = 1024;
const MAX_STATE_PLACES = 200_000;
const MAX_MASKS = 128;

export interface Automaton {
  /** Steps of work so far. */
  readonly work: number;
  /** Why the grammar cannot be followed, once that was found. */
  readonly refusal?: Error;
  readonly start: State;
  next(state: State, symbol: number): State | undefined;
  /** The tokens that may come next, as a bitmask. Do not change it. */
  mask(state: State): Uint32Array;
}

export function createAutomaton(grammar: Grammar, vocabulary: Vocabulary): Automaton {
  let work = 0;
  let refusal: Error | undefined;
  const refuse = (): never => {
    refusal = tooComplex();
    throw refusal;
  };
  /** Steps that may be taken before the next token. */
  let budget = MAX_WORK;
  const spend = (steps: number) => {
    work += steps;
    budget -= steps;
    if (budget < 0) refuse();
  };
  const root = compileNodes(grammar, vocabulary.markers, () => spend(NODE_WORK));
  const frames = new Map<string, Frame>();
  const shapes = new Map<string, number>();
  const states = new Map<string, State>();
  const masks = new Map<string, Uint32Array>();
  // Never reused: states that are still in use may have old ones.
  let frameCount = 0;
  let shapeCount = 0;
  let generation = 0;
  /** Of all states. */
  let placeCount = 0;

  const frameFor = (node: Node, times: number, parent?: Frame): Frame => {
    const key = `${node.id}.${times}.${parent?.id ?? ''}`;
    const known = frames.get(key);
    if (known) return known;
    const shapeKey = `${node.id}.${clampTimes(node, times, vocabulary.longest)}.${parent?.shape ?? ''}`;
    const shape = shapes.get(shapeKey) ?? shapeCount++;
    shapes.set(shapeKey, shape);
    spend(FRAME_WORK);
    const frame = { id: frameCount++, shape, node, times, parent };
    frames.set(key, frame);
    return frame;
  };

  /** All places that read a symbol next, from these on. */
  const close = (from: readonly Place[]): State => {
    const places = new Map<string, Place>();
    const seen = new Set<string>();
    const open: [Node, number, Frame | undefined][] = from.map(({ node, frame }) => [node, 0, frame]);
    let isEnd = false;
    while (open.length > 0) {
      const [node, times, frame] = open.pop()!;
      const key = `${node.id}.${times}.${frame?.id ?? ''}`;
      if (seen.has(key)) continue;
      seen.add(key);
      if (seen.size > 4 * MAX_PLACES) refuse();
      spend(PLACE_WORK);
      node.expand?.();
      if (node.edges.length > 0) places.set(`${node.id}.${frame?.id ?? ''}`, { node, frame });
      for (const skip of node.skips) open.push([skip, 0, frame]);
      if (node.isEnd) {
        if (frame) open.push([frame.node, frame.times, frame.parent]);
        else isEnd = true;
      }
      if (!node.call) continue;
      const { start, min, max, to } = node.call;
      if (times >= min) open.push([to, 0, frame]);
      if (times >= max) continue;
      // A single call that ends its rule returns where the rule returns.
      if (max === 1 && to.isEnd) open.push([start, 0, frame]);
      else
        open.push([
          start,
          0,
          frameFor(node, max === Number.POSITIVE_INFINITY ? Math.min(times + 1, min) : times + 1, frame),
        ]);
    }
    if (places.size > MAX_PLACES) refuse();
    spend(PLACE_WORK * places.size);
    return intern(
      [...places.entries()].sort(([a], [b]) => (a < b ? -1 : 1)),
      isEnd,
    );
  };

  const intern = (entries: readonly [string, Place][], isEnd: boolean): State => {
    const key = `${isEnd}:${entries.map(([place]) => place).join()}`;
    const known = states.get(key);
    if (known) return known;
    if (states.size >= MAX_STATES || placeCount >= MAX_STATE_PLACES) {
      placeCount = 0;
      states.clear();
      frames.clear();
      shapes.clear();
      masks.clear();
      generation++;
    }
    const places = entries.map(([, place]) => place);
    placeCount += places.length;
    const shape = `${isEnd}:${places
      .map(({ node, frame }) => `${node.id}.${frame?.shape ?? ''}`)
      .sort()
      .join()}`;
    const state = { places, isEnd, shape, generation, next: new Array<State | null | undefined>(vocabulary.symbols) };
    states.set(key, state);
    return state;
  };

  const next = (state: State, symbol: number): State | undefined => {
    // States that are still in use would keep all others that were dropped, and those the next ones.
    if (state.generation !== generation) {
      state.next.fill(undefined);
      state.generation = generation;
    }
    const known = state.next[symbol];
    if (known !== undefined) return known ?? undefined;
    const places: Place[] = [];
    // The symbols around this one that lead to the same places: most of a string's characters do.
    let [first, last] = [0, vocabulary.symbols - 1];
    for (const { node, frame } of state.places) {
      spend(node.edges.length);
      for (const { low, high, to } of node.edges) {
        if (high < symbol) first = Math.max(first, high + 1);
        else if (low > symbol) last = Math.min(last, low - 1);
        else {
          places.push({ node: to, frame });
          first = Math.max(first, low);
          last = Math.min(last, high);
        }
      }
    }
    const found = places.length === 0 ? null : close(places);
    state.next.fill(found, first, last + 1);
    return found ?? undefined;
  };

  return {
    get work() {
      return work;
    },
    get refusal() {
      return refusal;
    },
    start: close([{ node: root }]),
    next,
    mask(state) {
      budget = Math.min(MAX_WORK, budget + WORK_PER_TOKEN);
      const known = masks.get(state.shape);
      if (known) return known;
      const mask = new Uint32Array(vocabulary.words);
      const { shape } = state;
      vocabulary.walk(state, next, mask);
      if (state.isEnd) for (const id of vocabulary.endIds) mask[id >>> 5] |= 1 << (id & 31);
      if (masks.size >= MAX_MASKS) masks.clear();
      masks.set(shape, mask);
      return mask;
    },
  };
}

/** A counter as one token sees it: distances to its limits beyond the longest token's length are all the same. */
function clampTimes({ call }: Node, times: number, longest: number): string {
  if (!call) return '';
  const left = Math.min(call.max - times, longest + 1);
  return `${Math.max(0, Math.min(call.min - times, longest + 1))}/${left}`;
}

const tooComplex = () =>
  new InputError(
    'The schema allows too many readings of the same text to be followed. Simplify its patterns and alternatives.',
  );
