/**
 * Where the library differs from Jinja2 in Python, for which templates are written: there, filters of text read the text of
 * any value, an undefined value is also an empty list, None is printed, and lists have `min` and `max`.
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
  const isConcatenated = parent?.operator?.value === '~';
  if (isUndefined && isConcatenated) return stringLiteral('');
  const isConstant = isNone || value.type === 'BooleanValue';
  return isConstant && (isConcatenated || isPrinted(parent, node)) ? stringLiteral(pythonText(value)) : undefined;
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
  return type === 'FloatValue' && Number.isInteger(value) ? `${value}.0` : String(value);
}

const ESCAPES: Record<string, string> = { '\\': '\\\\', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escaped = text.replace(/[\\\n\r\t]/g, char => ESCAPES[char]).replaceAll(quote, `\\${quote}`);
  return quote + escaped + quote;
}
