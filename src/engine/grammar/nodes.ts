/**
 * A grammar as a graph of nodes, read one symbol at a time. Symbols are bytes, and above them one symbol per control token
 * that is a marker. A node that calls a rule continues at `to` afterwards.
 */
import type { Expression, Grammar } from './expression.ts';
import { utf8Ranges } from './utf8.ts';

export interface Edge {
  low: number;
  high: number;
  to: Node;
}

export interface Node {
  readonly id: number;
  edges: Edge[];
  /** Nodes that are reached without a symbol. */
  skips: Node[];
  /** The end of a rule, or of the text. */
  isEnd: boolean;
  /** Runs another part of the graph up to its end, between `min` and `max` times, then continues at `to`. */
  call?: Call;
}

export interface Call {
  start: Node;
  min: number;
  max: number;
  to: Node;
}

/** Short repetitions are written out. */
const MAX_UNROLLED = 4;

const utf8 = new TextEncoder();

/** Returns the start node. `markers`: the symbols of markers that are control tokens. */
export function compileNodes({ root, rules }: Grammar, markers: ReadonlyMap<string, number>): Node {
  let count = 0;
  const create = (fields: Partial<Node> = {}): Node => ({ id: count++, edges: [], skips: [], isEnd: false, ...fields });
  const starts = new Map<string, Node>();
  /** Shared parts of expressions stay shared. */
  const known = new Map<Expression, Map<Node, Node>>();

  const compile = (expression: Expression, to: Node): Node => {
    const before = known.get(expression)?.get(to);
    if (before) return before;
    const node = compileKind(expression, to);
    if (!known.has(expression)) known.set(expression, new Map());
    known.get(expression)?.set(to, node);
    return node;
  };

  const compileKind = (expression: Expression, to: Node): Node => {
    switch (expression.kind) {
      case 'text':
        return compileText(expression.text, to);
      case 'texts':
        return compileTexts(expression.texts, to);
      case 'character':
        return compileRanges(utf8Ranges(expression.ranges), to);
      case 'marker':
        return compileMarker(expression.text, to);
      case 'freeText':
        return compileSearch(expression.marker, start => compile(expression.after, expression.once ? to : start), to);
      case 'until':
        return compileSearch(expression.marker, () => to);
      case 'sequence':
        return expression.items.reduceRight((next, item) => compile(item, next), to);
      case 'choice':
        return create({ skips: expression.items.map(item => compile(item, to)) });
      case 'repeat':
        return compileRepeat(expression, to);
      case 'rule':
        return create({ call: { start: startOf(expression.name), min: 1, max: 1, to } });
    }
  };

  const startOf = (name: string): Node => {
    const known = starts.get(name);
    if (known) return known;
    const start = create();
    starts.set(name, start);
    start.skips.push(compile(rules.get(name)!, create({ isEnd: true })));
    return start;
  };

  const compileText = (value: string, to: Node): Node =>
    utf8.encode(value).reduceRight((next, byte) => create({ edges: [{ low: byte, high: byte, to: next }] }), to);

  const compileTexts = (values: readonly string[], to: Node): Node => {
    const start = create();
    for (const value of values) {
      let node = start;
      for (const byte of utf8.encode(value)) {
        let edge = node.edges.find(({ low }) => low === byte);
        if (!edge) {
          edge = { low: byte, high: byte, to: create() };
          node.edges.push(edge);
        }
        node = edge.to;
      }
      node.skips = [to];
    }
    return start;
  };

  const compileRanges = (sequences: readonly (readonly (readonly [number, number])[])[], to: Node): Node => {
    const rests = new Map<string, Node>();
    const restNode = (rest: readonly (readonly [number, number])[]): Node => {
      if (rest.length === 0) return to;
      const key = rest.join();
      const node =
        rests.get(key) ?? create({ edges: [{ low: rest[0][0], high: rest[0][1], to: restNode(rest.slice(1)) }] });
      rests.set(key, node);
      return node;
    };
    return create({ edges: sequences.map(([[low, high], ...rest]) => ({ low, high, to: restNode(rest) })) });
  };

  const compileMarker = (value: string, to: Node): Node => {
    const symbol = markers.get(value);
    const spelled = compileText(value, to);
    return symbol === undefined ? spelled : create({ skips: [spelled], edges: [{ low: symbol, high: symbol, to }] });
  };

  /** Any text up to a marker, or up to `end`. One node per length of the marker's beginning that the text ends with. */
  const compileSearch = (value: string, afterMarker: (start: Node) => Node, end?: Node): Node => {
    const bytes = utf8.encode(value);
    const nodes = Array.from(bytes, () => create({ skips: end ? [end] : [] }));
    const found = afterMarker(nodes[0]);
    const ends = (length: number, byte: number): number => {
      for (let size = Math.min(length + 1, bytes.length); size > 0; size--) {
        const suffix = [...bytes.subarray(0, length), byte].slice(-size);
        if (suffix.every((value, i) => value === bytes[i])) return size;
      }
      return 0;
    };
    nodes.forEach((node, length) => {
      for (let byte = 0; byte < 256; byte++) {
        const next = ends(length, byte);
        const target = next === bytes.length ? found : nodes[next];
        const last = node.edges.at(-1);
        if (last?.to === target && last.high === byte - 1) last.high = byte;
        else node.edges.push({ low: byte, high: byte, to: target });
      }
      const symbol = markers.get(value);
      if (symbol !== undefined) node.edges.push({ low: symbol, high: symbol, to: found });
    });
    return nodes[0];
  };

  const compileRepeat = ({ item, min, max }: Extract<Expression, { kind: 'repeat' }>, to: Node): Node => {
    if (min === 0 && max === Number.POSITIVE_INFINITY) {
      const node = create();
      node.skips.push(compile(item, node), to);
      return node;
    }
    if (min === 1 && max === Number.POSITIVE_INFINITY)
      return compile(item, compile({ kind: 'repeat', item, min: 0, max }, to));
    if (max <= MAX_UNROLLED) {
      let node = to;
      for (let i = max; i > 0; i--) {
        const once = compile(item, node);
        node = i > min ? create({ skips: [once, to] }) : once;
      }
      return node;
    }
    return create({ call: { start: compile(item, create({ isEnd: true })), min, max, to } });
  };

  return compile(root, create({ isEnd: true }));
}
