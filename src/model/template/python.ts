/**
 * Where the library differs from Jinja2 in Python, for which templates are written: there, filters of text read the text of
 * any value, an undefined value is also an empty list, None and lists are printed as Python writes them, lists have `min`
 * and `max`, lists and objects are equal if their contents are, and JSON text is that of `json.dumps`.
 */

/** The parts of the library's syntax tree that are used here. */
export interface Node {
  type: string;
  value?: unknown;
  property?: Node;
  callee?: Node;
  operand?: Node;
  filter?: Node;
  test?: Node;
  iterable?: Node;
  lhs?: Node;
  body?: Node[];
  alternate?: Node[];
  defaultBlock?: Node[];
  operator?: { value: string };
}

export interface Value {
  type: string;
  value: unknown;
}

const TEXT_FILTERS = new Set(['string', 'trim', 'upper', 'lower', 'title', 'capitalize', 'replace', 'indent']);
const LIST_FILTERS = new Set(['length', 'list', 'join', 'sort', 'items', 'selectattr', 'rejectattr', 'map']);
/** These read None as an empty list, too. */
const LAZY_FILTERS = new Set(['selectattr', 'rejectattr', 'map']);
const EQUALITIES = new Set<unknown>(['==', '!=']);
/** Which the library prints in another form. An object stays JSON: templates that print a call's arguments expect that. */
const PRINTED_TYPES = new Set(['NullValue', 'BooleanValue', 'FloatValue', 'ArrayValue']);
const EXPRESSIONS = new Set([
  ...['Identifier', 'Ternary', 'MemberExpression', 'CallExpression', 'FilterExpression'],
  ...['TestExpression', 'UnaryExpression', 'BinaryExpression'],
]);

/** The literal that Python has in place of a node's value, where it is read by `parent`; undefined if they are the same. */
export function literalInPython(value: Value, node: Node, parent: Node | undefined): Node | undefined {
  const [isUndefined, isNone] = [value.type === 'UndefinedValue', value.type === 'NullValue'];
  if (parent?.type === 'FilterExpression' && parent.operand === node) {
    const filter = filterName(parent);
    if (TEXT_FILTERS.has(filter) && value.type !== 'StringValue') return stringLiteral(pythonText(value));
    const isEmpty = isUndefined ? LIST_FILTERS.has(filter) : isNone && LAZY_FILTERS.has(filter);
    return isEmpty ? EMPTY_LIST : undefined;
  }
  // Python rejects a loop over None; templates of tool calls have one over tools, and are used without tools, too.
  if ((isUndefined || isNone) && isIterable(parent, node)) return EMPTY_LIST;
  if (parent?.type === 'BinaryExpression' && EQUALITIES.has(parent.operator?.value)) {
    const isScalar = !isUndefined && !Array.isArray(value.value) && !(value.value instanceof Map);
    // The library compares identities, and takes undefined for None. No text of a template starts with NUL.
    return isScalar ? undefined : stringLiteral(`\0${pythonLiteral(value)}`);
  }
  const isConcatenated = parent?.operator?.value === '~';
  if (isUndefined && isConcatenated) return stringLiteral('');
  const isRead = isConcatenated || isPrinted(parent, node);
  return isRead && PRINTED_TYPES.has(value.type) ? stringLiteral(pythonText(value)) : undefined;
}

const EMPTY_LIST: Node = { type: 'ArrayLiteral', value: [] };
const stringLiteral = (value: string): Node => ({ type: 'StringLiteral', value });

/** `numbers | min` as `numbers | sort | first`, which the library has; other nodes as they are. */
export function withoutMinMax(node: Node): Node {
  const end = node.type === 'FilterExpression' && { min: 'first', max: 'last' }[filterName(node)];
  return end ? filtered(filtered(node.operand, 'sort'), end) : node;
}

const filtered = (operand: Node | undefined, name: string): Node => ({
  type: 'FilterExpression',
  operand,
  filter: { type: 'Identifier', value: name },
});

/** The entries of `{1: a, 2: b}`; undefined for any other node. */
export function numberedEntries(node: Node): readonly [Node, Node][] | undefined {
  if (node.type !== 'ObjectLiteral') return undefined;
  const entries = [...(node.value as Map<Node, Node>)];
  return entries.length > 0 && entries.every(([key]) => key.type === 'IntegerLiteral') ? entries : undefined;
}

/** The library's objects have only texts as keys. */
export function withTextKeys(node: Node): Node {
  const entries = numberedEntries(node);
  if (!entries) return node;
  const value = new Map(entries.map(([{ value }, entry]) => [{ type: 'StringLiteral', value: String(value) }, entry]));
  return { ...node, value };
}

/** `x | name` or `x | name(arguments)`. */
export function filterName(node: Node): string {
  return String((node.filter?.callee ?? node.filter)?.value);
}

/** `for x in node`, with or without an `if`. */
export function isIterable(parent: Node | undefined, node: Node): boolean {
  return parent?.type === 'For' && (parent.iterable === node || parent.iterable?.lhs === node);
}

/** `{{ node }}` */
function isPrinted(parent: Node | undefined, node: Node): boolean {
  const blocks = [parent?.body, parent?.alternate, parent?.defaultBlock];
  return EXPRESSIONS.has(node.type) && blocks.some(block => block?.includes(node));
}

/** Python's `str(value)`. */
function pythonText(value: Value): string {
  return value.type === 'StringValue' ? String(value.value) : pythonLiteral(value);
}

/** Python's `repr(value)`. */
function pythonLiteral({ type, value }: Value): string {
  if (type === 'UndefinedValue') return '';
  if (type === 'NullValue') return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (typeof value === 'string') return quoted(value);
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(', ')}]`;
  if (value instanceof Map) {
    return `{${Array.from(value, ([key, item]) => `${quoted(String(key))}: ${pythonLiteral(item)}`).join(', ')}}`;
  }
  if (typeof value !== 'number') return String(value);
  return type === 'FloatValue' && Number.isInteger(value) ? `${value}.0` : pythonNumber(value);
}

/** Python writes small numbers with an exponent, of at least two digits. */
function pythonNumber(value: number): string {
  const isSmall = value !== 0 && Math.abs(value) < 1e-4;
  return isSmall ? value.toExponential().replace(/-(\d)$/, '-0$1') : String(value);
}

const QUOTES_NUMBERS_AND_EMPTY = /\\.|"|(?<![\d.])-?(?:\d[\d.]*e-\d+|0\.0000\d+)|[[{]\s+[\]}]/g;

/** The text of `tojson` as `json.dumps` writes it: other small numbers, and no line break in what is empty. */
export function jsonInPython(json: string): string {
  let isString = false;
  return json.replace(QUOTES_NUMBERS_AND_EMPTY, part => {
    if (part === '"') isString = !isString;
    if (isString || part === '"') return part;
    return part[0] === '[' || part[0] === '{' ? part[0] + part.at(-1) : pythonNumber(Number(part));
  });
}

const ESCAPES: Record<string, string> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replace(/[\\\n\r\t]/g, char => ESCAPES[char]).replaceAll(quote, `\\${quote}`);
  return quote + escaped + quote;
}
