/**
 * Jinja for untrusted templates. The library's interpreter evaluates every node through one method, `evaluate`, so a
 * subclass that overrides it sees every step and every value. It stops a template that runs too long, makes too large
 * a value or nests too deep, at the same point on every machine.
 *
 * Work units: one per node evaluated, one per item of a new list, `LOOP_WORK` per item looped over, and one per 64
 * characters that an operation reads (a filter, a comparison, a method). The size of a value counts shared parts every
 * time: a list of lists is as large as its printed text.
 */
import * as jinja from '@huggingface/jinja';
import { FormatError, KvasirError } from '../../util/errors.ts';
import {
  filterName,
  isIterable,
  jsonInPython,
  literalInPython,
  type Node,
  numberedEntries,
  type Value,
  withoutMinMax,
  withTextKeys,
} from './python.ts';

interface Environment {
  set(name: string, value: unknown): unknown;
}

// The library's type declarations import without file extensions, which NodeNext resolution cannot follow.
const { Environment, Interpreter, parse, tokenize } = jinja as unknown as {
  Environment: new (parent?: Environment) => Environment;
  Interpreter: new (
    environment: Environment,
  ) => {
    evaluate(node: Node | undefined, environment: Environment): Value;
    evaluateBlock(statements: readonly Node[], environment: Environment): Value;
  };
  parse(tokens: unknown): Node;
  tokenize(source: string, options: { lstrip_blocks: boolean; trim_blocks: boolean }): unknown;
};

const SOURCE_LIMIT = 128 * 1024;
/** The library's lexer takes quadratic time for a run of white space; real templates have a few dozen at most. */
const BLANK_LIMIT = 500;
const RANGE_LIMIT = 10_000;
const DEPTH_LIMIT = 400;
/** The limits for an empty chat; they grow with the size of the input. */
const WORK_LIMIT = 200_000;
const SIZE_LIMIT = 256 * 1024;
const LOOP_WORK = 4;

export type Program = Node;

export function parseTemplate(source: string): Program {
  if (source.length > SOURCE_LIMIT) {
    throw new FormatError(`The chat template is ${source.length} characters long; at most ${SOURCE_LIMIT} are read.`);
  }
  if (new RegExp(`\\s{${BLANK_LIMIT + 1}}`).test(source)) {
    throw new FormatError(
      `The chat template has more than ${BLANK_LIMIT} white space characters in a row; it may be broken or hostile.`,
    );
  }
  return asFormatError(() => parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true })));
}

/** `mapLiteral` is applied to each string literal of the template. */
export function renderTemplate(
  program: Program,
  mapLiteral: (text: string) => string,
  variables: Record<string, unknown>,
): string {
  return asFormatError(() => {
    const environment = new Environment();
    const globals = { true: true, True: true, false: false, False: false, none: null, None: null, range };
    for (const [name, value] of Object.entries({ ...globals, ...variables })) environment.set(name, value);
    const interpreter = new BoundedInterpreter(environment, measureInput(variables), mapLiteral);
    return String(interpreter.evaluate(program, environment).value);
  });
}

const textNode = (value: string): Node => ({ type: 'StringLiteral', value });

/** How much of its operands' values a node reads: nothing, their own length, or everything they contain. */
type ReadCost = 'none' | 'length' | 'all';

const CHEAP_FILTERS = new Set(['length', 'first', 'last', 'default', 'list', 'safe', 'abs', 'int', 'float']);

class BoundedInterpreter extends Interpreter {
  #work = 0;
  #depth = 0;
  #node: Node | undefined;
  #readCost: ReadCost = 'none';
  /** Blocks end at `continue` and `break`. `Left`: the loop's other passes are empty. */
  #leaving: 'Continue' | 'Break' | 'Left' | undefined;
  readonly #workLimit: number;
  readonly #sizeLimit: number;
  readonly #sizes = new WeakMap<object, number>();
  readonly #mapLiteral: (text: string) => string;
  readonly #literals = new Map<string, string>();
  /** The entries of objects whose keys are numbers. */
  readonly #numbered = new WeakMap<object, readonly [Node, Node][]>();

  constructor(environment: Environment, input: InputSize, mapLiteral: (text: string) => string) {
    super(environment);
    this.#mapLiteral = mapLiteral;
    this.#workLimit = WORK_LIMIT + 64 * input.values + input.characters / 4;
    this.#sizeLimit = SIZE_LIMIT + 4 * (input.values + input.characters);
  }

  override evaluate(node: Node | undefined, environment: Environment): Value {
    this.#spend(1);
    if (this.#depth >= DEPTH_LIMIT) throw limitError('nests too deep');
    const [outerNode, outerReadCost] = [this.#node, this.#readCost];
    this.#node = node;
    this.#readCost = readCostOf(node, outerNode);
    this.#depth++;
    let value: Value;
    try {
      value = this.#evaluateNode(node && withoutMinMax(node), environment);
    } finally {
      this.#depth--;
      this.#node = outerNode;
      this.#readCost = outerReadCost;
    }
    if (node?.type === 'StringLiteral') value.value = this.#literalOf(String(value.value));
    if (value.type === 'ObjectValue' && outerNode?.type === 'BinaryExpression') printAsJson(value);
    const size = this.#sizeOf(value);
    if (size > this.#sizeLimit) throw limitError('produces too much text');
    if (node?.type === 'FilterExpression' && filterName(node) === 'tojson')
      value.value = jsonInPython(String(value.value));
    if (outerReadCost === 'all') this.#spend(size / 64);
    else if (outerReadCost === 'length') this.#spend(lengthOf(value) / 64);
    if (node && isIterable(outerNode, node)) this.#spend(LOOP_WORK * lengthOf(value));
    const literal = node && literalInPython(value, node, outerNode);
    if (!literal) return value;
    this.#spend(size / 64);
    return super.evaluate(literal, environment);
  }

  #evaluateNode(node: Node | undefined, environment: Environment): Value {
    if (node?.type === 'Continue' || node?.type === 'Break') {
      this.#leaving = node.type;
      return super.evaluate(textNode(''), environment);
    }
    const sorted = node && filterName(node) === 'dictsort' && this.#sortedByNumber(node, environment);
    const value = super.evaluate(sorted || (node && withTextKeys(node)), environment);
    const numbered = node && numberedEntries(node);
    if (numbered) this.#numbered.set(value, numbered);
    if (node?.type === 'Program' && this.#leaving) throw new Error(`${this.#leaving} outside of a loop`);
    if (node?.type === 'For' && this.#leaving === 'Left') this.#leaving = undefined;
    return value;
  }

  /** `dictsort` of an object whose keys are numbers: the library's keys are texts. */
  #sortedByNumber(node: Node, environment: Environment): Node | undefined {
    const entries = this.#numbered.get(this.evaluate(node.operand, environment));
    const sorted = entries && [...entries].sort(([a], [b]) => Number(a.value) - Number(b.value));
    return sorted && { type: 'ArrayLiteral', value: sorted.map(value => ({ type: 'ArrayLiteral', value })) };
  }

  /** In Python, each pass of a loop has its own variables, and what it wrote before `continue` or `break` stays. */
  override evaluateBlock(statements: readonly Node[], environment: Environment): Value {
    let text = '';
    if (!this.#leaving) {
      const isPass = this.#node?.type === 'For' && this.#node.body === statements;
      const scope = isPass ? new Environment(environment) : environment;
      for (const statement of statements) {
        const value = this.evaluate(statement, scope);
        if (value.type !== 'NullValue' && value.type !== 'UndefinedValue') text += String(value);
        if (this.#leaving) break;
      }
      if (isPass && this.#leaving) this.#leaving = this.#leaving === 'Break' ? 'Left' : undefined;
    }
    return super.evaluate(textNode(text), environment);
  }

  #literalOf(text: string): string {
    const known = this.#literals.get(text) ?? this.#mapLiteral(text);
    this.#literals.set(text, known);
    return known;
  }

  #spend(work: number): void {
    this.#work += work;
    if (this.#work > this.#workLimit) throw limitError('runs too long');
  }

  #sizeOf(value: Value): number {
    if (typeof value.value === 'string') return value.value.length;
    if (typeof value.value !== 'object' || value.value === null) return 1;
    const known = this.#sizes.get(value);
    if (known !== undefined) return known;
    this.#spend(lengthOf(value));
    // Only namespaces can change after creation, and only they can contain themselves.
    const isMutable = value.type === 'NamespaceValue';
    if (isMutable) this.#sizes.set(value, 1);
    let size = 1;
    for (const item of itemsOf(value.value)) size += 1 + this.#sizeOf(item);
    if (isMutable) this.#sizes.delete(value);
    else this.#sizes.set(value, size);
    return size;
  }
}

/** Nodes that read nothing of their operands, or only whether they are true. */
const FREE_NODES = new Set([
  ...['Program', 'If', 'For', 'Set', 'Macro', 'Break', 'Continue', 'Comment', 'Identifier', 'Ternary'],
  ...['IntegerLiteral', 'FloatLiteral', 'StringLiteral', 'ArrayLiteral', 'TupleLiteral', 'ObjectLiteral'],
  ...['UnaryExpression', 'SelectExpression'],
]);

/** Unknown node types are charged as if they read everything. */
export function readCostOf(node: Node | undefined, parent: Node | undefined): ReadCost {
  if (!node || FREE_NODES.has(node.type)) return 'none';
  switch (node.type) {
    case 'MemberExpression':
      return node.property?.type === 'SliceExpression' || parent?.callee === node ? 'length' : 'none';
    case 'FilterExpression':
      return CHEAP_FILTERS.has(filterName(node)) ? 'none' : 'all';
    case 'TestExpression':
      return node.test?.value === 'lower' || node.test?.value === 'upper' ? 'length' : 'none';
    default:
      return 'all';
  }
}

/** Templates that write `'...' + arguments` expect JSON text; in Python, an object there is an error. */
function printAsJson(value: Value): void {
  (value.value as Map<string, Value>).toString = () => String(value);
}

function itemsOf(value: object): Iterable<Value> {
  if (Array.isArray(value)) return value;
  return value instanceof Map ? value.values() : [];
}

function lengthOf({ value }: Value): number {
  if (typeof value === 'string' || Array.isArray(value)) return value.length;
  return value instanceof Map ? value.size : 1;
}

interface InputSize {
  values: number;
  characters: number;
}

function measureInput(value: unknown): InputSize {
  if (typeof value === 'string') return { values: 1, characters: value.length };
  const extent = { values: 1, characters: 0 };
  if (typeof value === 'object' && value !== null) {
    for (const item of Object.values(value)) {
      const { values, characters } = measureInput(item);
      extent.values += values;
      extent.characters += characters;
    }
  }
  return extent;
}

function range(start: number, stop?: number, step = 1): number[] {
  const [from, to] = stop === undefined || stop === null ? [0, start] : [start, stop];
  const count = Math.max(0, Math.ceil((to - from) / step));
  if (!(count <= RANGE_LIMIT)) throw limitError(`uses a range of more than ${RANGE_LIMIT} numbers`);
  return Array.from({ length: count }, (_, i) => from + i * step);
}

function limitError(what: string): FormatError {
  return new FormatError(
    `The chat template ${what} and was stopped. It may be broken or hostile; use another model file or your own template.`,
  );
}

/** Everything that the library throws, including stack overflow and oversized strings, is the template's fault. */
function asFormatError<T>(run: () => T): T {
  try {
    return run();
  } catch (error) {
    if (error instanceof KvasirError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw new FormatError(`The chat template cannot be used: ${reason.slice(0, 300).replace(/\.$/, '')}.`, {
      cause: error,
    });
  }
}
