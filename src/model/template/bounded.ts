/**
 * Jinja for templates that we do not trust. The library's interpreter walks the syntax tree through one method,
 * `evaluate`, so a subclass that counts there sees every step and every value, and can stop a template that does too
 * much, makes too large a value or nests too deep, at the same point on every machine.
 *
 * Work is one a node evaluated, one an item of a new list, a few an item looped over, and one for each 64 characters
 * that an operation reads (a filter, a comparison, a method). The size of a value counts all it holds, however often
 * it shares a part: a list of lists of lists is as large as it prints.
 */
import * as jinja from '@huggingface/jinja';
import { FormatError, KvasirError } from '../../errors.ts';

/** What is looked at of the library's syntax tree. */
interface Node {
  type: string;
  value?: unknown;
  property?: Node;
  callee?: Node;
  filter?: Node;
  test?: Node;
  iterable?: Node;
  lhs?: Node;
}

interface Value {
  type: string;
  value: unknown;
}

interface Environment {
  set(name: string, value: unknown): unknown;
}

// The library's type declarations lack the file extensions that Node's resolution asks for, so its parts have no types.
const { Environment, Interpreter, parse, tokenize } = jinja as unknown as {
  Environment: new () => Environment;
  Interpreter: new (environment: Environment) => { evaluate(node: Node | undefined, environment: Environment): Value };
  parse(tokens: unknown): Node;
  tokenize(source: string, options: { lstrip_blocks: boolean; trim_blocks: boolean }): unknown;
};

const SOURCE_LIMIT = 128 * 1024;
/** The library's lexer takes quadratic time for a run of white space; templates indent by some dozens. */
const BLANK_LIMIT = 500;
const RANGE_LIMIT = 10_000;
const DEPTH_LIMIT = 400;
/** What any template may do; long chats allow more. */
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
      `The chat template has more than ${BLANK_LIMIT} blanks in a row; it may be broken or hostile.`,
    );
  }
  return asFormatError(() => parse(tokenize(source, { lstrip_blocks: true, trim_blocks: true })));
}

/** `literal` gets to change each string that stands in the template itself. */
export function renderTemplate(
  program: Program,
  literal: (text: string) => string,
  variables: Record<string, unknown>,
): string {
  return asFormatError(() => {
    const environment = new Environment();
    const globals = { true: true, True: true, false: false, False: false, none: null, None: null, range };
    for (const [name, value] of Object.entries({ ...globals, ...variables })) environment.set(name, value);
    const interpreter = new BoundedInterpreter(environment, measure(variables), literal);
    return String(interpreter.evaluate(program, environment).value);
  });
}

/** How a node reads what its parts evaluate to: not at all, its own length, or everything inside it. */
type Reading = 'none' | 'length' | 'all';

const CHEAP_FILTERS = new Set(['length', 'first', 'last', 'default', 'list', 'safe', 'abs', 'int', 'float']);

class BoundedInterpreter extends Interpreter {
  #work = 0;
  #depth = 0;
  #node: Node | undefined;
  #reading: Reading = 'none';
  readonly #workLimit: number;
  readonly #sizeLimit: number;
  readonly #sizes = new WeakMap<object, number>();
  readonly #literal: (text: string) => string;
  readonly #literals = new Map<string, string>();

  constructor(environment: Environment, input: Extent, literal: (text: string) => string) {
    super(environment);
    this.#literal = literal;
    this.#workLimit = WORK_LIMIT + 64 * input.values + input.characters / 4;
    this.#sizeLimit = SIZE_LIMIT + 4 * (input.values + input.characters);
  }

  override evaluate(node: Node | undefined, environment: Environment): Value {
    this.#spend(1);
    if (this.#depth >= DEPTH_LIMIT) throw tooMuch('nests too deep');
    const [outerNode, outerReading] = [this.#node, this.#reading];
    this.#node = node;
    this.#reading = readingOf(node, outerNode);
    this.#depth++;
    let value: Value;
    try {
      value = super.evaluate(node, environment);
    } finally {
      this.#depth--;
      this.#node = outerNode;
      this.#reading = outerReading;
    }
    if (node?.type === 'StringLiteral') value.value = this.#literalOf(String(value.value));
    if (value.type === 'ObjectValue' && outerNode?.type === 'BinaryExpression') writeAsJson(value);
    const size = this.#sizeOf(value);
    if (size > this.#sizeLimit) throw tooMuch('makes too large a text');
    if (outerReading === 'all') this.#spend(size / 64);
    else if (outerReading === 'length') this.#spend(lengthOf(value) / 64);
    if (node && isIterable(outerNode, node)) this.#spend(LOOP_WORK * lengthOf(value));
    return value;
  }

  #literalOf(text: string): string {
    const known = this.#literals.get(text) ?? this.#literal(text);
    this.#literals.set(text, known);
    return known;
  }

  #spend(work: number): void {
    this.#work += work;
    if (this.#work > this.#workLimit) throw tooMuch('runs too long');
  }

  #sizeOf(value: Value): number {
    if (typeof value.value === 'string') return value.value.length;
    if (typeof value.value !== 'object' || value.value === null) return 1;
    const known = this.#sizes.get(value);
    if (known !== undefined) return known;
    this.#spend(lengthOf(value));
    // Only namespaces change after they are made, and only they can hold themselves.
    const changing = value.type === 'NamespaceValue';
    if (changing) this.#sizes.set(value, 1);
    let size = 1;
    for (const item of itemsOf(value.value)) size += 1 + this.#sizeOf(item);
    if (changing) this.#sizes.delete(value);
    else this.#sizes.set(value, size);
    return size;
  }
}

/** These read nothing of what their parts evaluate to, or only its truth. */
const PASSING_NODES = new Set([
  ...['Program', 'If', 'For', 'Set', 'Macro', 'Break', 'Continue', 'Comment', 'Identifier', 'Ternary'],
  ...['IntegerLiteral', 'FloatLiteral', 'StringLiteral', 'ArrayLiteral', 'TupleLiteral', 'ObjectLiteral'],
  ...['UnaryExpression', 'SelectExpression'],
]);

/** A node of a type that is not known here counts as one that reads everything. */
export function readingOf(node: Node | undefined, parent: Node | undefined): Reading {
  if (!node || PASSING_NODES.has(node.type)) return 'none';
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

/** Templates that write `'...' + arguments` were made for JSON text; Python would refuse an object there. */
function writeAsJson(value: Value): void {
  (value.value as Map<string, Value>).toString = () => String(value);
}

/** `for x in node`, with or without an `if` behind it. */
function isIterable(parent: Node | undefined, node: Node): boolean {
  return parent?.type === 'For' && (parent.iterable === node || parent.iterable?.lhs === node);
}

/** `x | name` or `x | name(arguments)`. */
function filterName(node: Node): string {
  return String((node.filter?.callee ?? node.filter)?.value);
}

function itemsOf(value: object): Iterable<Value> {
  if (Array.isArray(value)) return value;
  return value instanceof Map ? value.values() : [];
}

function lengthOf({ value }: Value): number {
  if (typeof value === 'string' || Array.isArray(value)) return value.length;
  return value instanceof Map ? value.size : 1;
}

interface Extent {
  values: number;
  characters: number;
}

function measure(value: unknown): Extent {
  if (typeof value === 'string') return { values: 1, characters: value.length };
  const extent = { values: 1, characters: 0 };
  if (typeof value === 'object' && value !== null) {
    for (const item of Object.values(value)) {
      const { values, characters } = measure(item);
      extent.values += values;
      extent.characters += characters;
    }
  }
  return extent;
}

function range(start: number, stop?: number, step = 1): number[] {
  const [from, to] = stop === undefined || stop === null ? [0, start] : [start, stop];
  const count = Math.max(0, Math.ceil((to - from) / step));
  if (!(count <= RANGE_LIMIT)) throw tooMuch(`asks for a range of more than ${RANGE_LIMIT} numbers`);
  return Array.from({ length: count }, (_, i) => from + i * step);
}

function tooMuch(what: string): FormatError {
  return new FormatError(
    `The chat template ${what} and was stopped. It may be broken or hostile; use another model file, or give a template of your own.`,
  );
}

/** Everything that the library throws, stack overflow and oversized strings among it, is the template's fault. */
function asFormatError<T>(run: () => T): T {
  try {
    return run();
  } catch (error) {
    if (error instanceof KvasirError) throw error;
    const reason = error instanceof Error ? error.message : String(error);
    throw new FormatError(`The chat template cannot be used: ${reason.slice(0, 300)}`, { cause: error });
  }
}
