/**
 * A grammar as a graph of nodes, read one symbol at a time. Symbols are bytes, and above them one symbol per control token
 * that is a marker. A node that calls a rule continues at `to` afterwards. Parts are compiled when they are first reached: a
 * large grammar takes no longer than what is read of it.
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
  /** Fills in the node, which is empty until then. */
  expand?: () => void;
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

/** What is small is compiled at once. */
const SMALL = ['text', 'character', 'marker', 'until', 'rule'];

/** Returns the start node. `markers`: the symbols of markers that are control tokens. `onNode` is told of each new node. */
export function compileNodes(
  { root, rules }: Grammar,
  markers: ReadonlyMap<string, number>,
  onNode: () => void = () => {},
): Node {
  let count = 0;
  const create = (fields: Partial<Node> = {}): Node => {
    onNode();
    return { id: count++, edges: [], skips: [], isEnd: false, ...fields };
  };
  /** A node that is made when it is reached. */
  const defer = (make: () => Node): Node => {
    const node = create({
      expand() {
        node.expand = undefined;
        const made = make();
        const { edges, skips, isEnd, call } = made;
        // What is itself made later is only referred to.
        Object.assign(node, made.expand ? { skips: [made] } : { edges, skips, isEnd, call });
      },
    });
    return node;
  };
  const starts = new Map<string, Node>();
  /** Shared parts of expressions stay shared. */
  const known = new Map<Expression, Map<Node, Node>>();

  const compile = (expression: Expression, to: Node): Node => {
    const before = known.get(expression)?.get(to);
    if (before) return before;
    const node = SMALL.includes(expression.kind)
      ? compileKind(expression, to)
      : defer(() => compileKind(expression, to));
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

  const compileTexts = (values: readonly string[], to: Node): Node =>
    compileTrie(
      values.map(value => utf8.encode(value)),
      0,
      to,
    );

  /** The rest of these texts, from their byte `depth` on. */
  const compileTrie = (texts: readonly Uint8Array[], depth: number, to: Node): Node => {
    const groups = new Map<number, Uint8Array[]>();
    for (const bytes of texts) {
      if (bytes.length === depth) continue;
      const group = groups.get(bytes[depth]);
      if (group) group.push(bytes);
      else groups.set(bytes[depth], [bytes]);
    }
    return create({
      edges: Array.from(groups, ([byte, group]) => ({
        ...{ low: byte, high: byte },
        to: defer(() => compileTrie(group, depth + 1, to)),
      })),
      skips: texts.some(({ length }) => length === depth) ? [to] : [],
    });
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
