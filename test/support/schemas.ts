/** 200 JSON Schemas in families, and hostile ones that must be refused or be followed in bounded time. */
type Schema = Record<string, unknown>;

const object = (properties: Record<string, unknown>, required = Object.keys(properties)): Schema => ({
  type: 'object',
  properties,
  required,
});
const NAMES = ['name', 'größe', '名前', 'a"b', 'back\\slash', 'new\nline', '😀', 'with space', '', '__proto__'];
const SCALARS: Schema[] = [
  { type: 'string', maxLength: 12 },
  { type: 'integer' },
  { type: 'number' },
  { type: 'boolean' },
  { type: 'null' },
  { enum: ['red', 'green', 'blau', 'красный', 'a "quoted" one', 3, null] },
  { const: { kind: 'fixed', list: [1, 'é', null] } },
  { type: ['integer', 'null'] },
];
const FORMATS = ['date', 'time', 'date-time', 'uuid', 'ipv4', 'hostname', 'email', 'uri'];
const PATTERNS = [
  '^[A-Z]{2,3}-\\d{4}$',
  '^(yes|no|maybe)$',
  '^\\w{1,8}@\\w+$',
  '[0-9]',
  '^[^a-z"]{1,5}$',
  '^.{3}$',
  '^[a-z]{1,8}\\.(js|ts)$',
];
const times = <T>(count: number, make: (i: number) => T): T[] => Array.from({ length: count }, (_, i) => make(i));

const nested = (depth: number, leaf: Schema): Schema =>
  depth === 0 ? leaf : object({ [`level${depth}`]: nested(depth - 1, leaf) });
const list = (items: unknown, minItems: number, maxItems: number): Schema => ({
  type: 'array',
  items,
  minItems,
  maxItems,
});
const tree = (value: Schema): Schema => ({
  $ref: '#/$defs/node',
  $defs: { node: object({ value, children: { type: 'array', items: { $ref: '#/$defs/node' }, maxItems: 2 } }) },
});
const chain: Schema = object({ next: { anyOf: [{ type: 'null' }, { $ref: '#' }] } });
const tagged = (kind: string, more: Schema): Schema => object({ kind: { const: kind }, more });
const bounds: Schema[] = [
  ...[
    [0, 10],
    [-5, 5],
    [17, 4021],
    [-1000, -7],
    [99, 101],
    [0, 0],
  ].map(([minimum, maximum]) => ({ minimum, maximum })),
  { minimum: 1 },
  { maximum: -1 },
  { exclusiveMinimum: 0, exclusiveMaximum: 2 },
  { exclusiveMinimum: -1 },
];
const fractions: Schema[] = [
  { minimum: 0, maximum: 1 },
  { exclusiveMinimum: 0, exclusiveMaximum: 1 },
  { minimum: 0.5, maximum: 2.25 },
  { minimum: -273.15 },
  { minimum: 0.1, maximum: 0.12 },
  { minimum: -1.5, exclusiveMaximum: -0.25 },
];

const groups: Schema[][] = [
  SCALARS,
  SCALARS.map(scalar => object({ value: scalar })),
  times(12, i => nested(i + 1, SCALARS[i % SCALARS.length])),
  NAMES.map((name, i) => object({ [name]: SCALARS[i % SCALARS.length], other: { type: 'boolean' } })),
  times(12, i => list(SCALARS[i % SCALARS.length], i % 3, 3 + (i % 4))),
  times(8, i => ({
    type: 'array',
    prefixItems: SCALARS.slice(0, i + 1),
    items: i % 2 ? false : { type: 'boolean' },
    maxItems: i + 3,
  })),
  bounds.map(bound => ({ type: 'integer', ...bound })),
  [...bounds, ...fractions].map(bound => object({ n: { type: 'number', ...bound } })),
  FORMATS.map(format => object({ text: { type: 'string', format } })),
  PATTERNS.map(pattern => object({ text: { type: 'string', pattern } })),
  times(10, i => object({ text: { type: 'string', minLength: i, maxLength: 2 * i } })),
  times(10, i => ({ enum: times(3 ** (i % 6) + 1, j => `value ${j * 7919} ${'äöü'[j % 3]}`) })),
  times(10, i =>
    object(Object.fromEntries(times(i + 2, j => [`p${j}`, SCALARS[(i + j) % SCALARS.length]])), i % 2 ? [`p${i}`] : []),
  ),
  times(8, i => ({
    ...object({ a: { type: 'integer' }, ab: { type: 'integer' } }, ['a']),
    additionalProperties: i % 2 ? { type: 'boolean' } : { type: 'string', maxLength: i },
  })),
  times(10, i => ({ anyOf: [SCALARS[i % SCALARS.length], object({ value: SCALARS[(i + 1) % SCALARS.length] })] })),
  times(8, i => ({ oneOf: [tagged('a', SCALARS[i]), tagged('b', { type: 'integer' }), { type: 'null' }] })),
  times(8, i => tree(SCALARS[i])),
  times(6, i => ({ allOf: [object({ a: { type: 'integer', minimum: i } }), object({ b: SCALARS[i] })] })),
  times(6, i => ({ type: 'string', anyOf: [{ enum: ['x', 'y'] }, { minLength: i + 1, maxLength: i + 2 }] })),
  times(4, i => ({
    ...object({ a: { $ref: '#/$defs/id' }, b: { $ref: '#/$defs/id', maximum: 5 } }),
    $defs: { id: { type: 'integer', minimum: i } },
  })),
  [
    chain,
    { type: 'object', required: ['must'] },
    { type: 'object', additionalProperties: { type: 'integer' } },
    { title: 'Any' },
  ],
  [
    { type: 'object', propertyNames: { type: 'string' }, additionalProperties: { type: 'boolean' } },
    { type: 'object', propertyNames: { pattern: '^[a-z]{1,3}$' }, additionalProperties: { type: 'integer' } },
    { type: 'object', propertyNames: { enum: ['a', 'b'] }, additionalProperties: { type: 'null' }, required: ['b'] },
    { type: 'object', patternProperties: { '^x-': { type: 'integer' } }, additionalProperties: false },
    { type: 'string', pattern: '^[a-z]+$', minLength: 2, maxLength: 4 },
    { type: 'string', pattern: '^[A-Z][a-z0-9-]*$', minLength: 3, maxLength: 9 },
    { type: 'string', pattern: '^\\d{4}$', minLength: 1, maxLength: 9 },
    { type: 'string', pattern: '^a', maxLength: 3 },
    { type: 'string', format: 'date', pattern: '^2024-01-1\\d$' },
    { type: 'number', multipleOf: 0.01, minimum: 0, maximum: 5 },
    { type: 'number', multipleOf: 1 },
    { enum: [1, 5, 'five', 9], minimum: 5, maxLength: 3 },
    { type: 'integer', 'x-unit': 'm', markdownDescription: 'A length.', minimum: 1 },
    { allOf: [{ ...object({ a: { type: 'integer' } }), additionalProperties: false }, object({ a: { minimum: 3 } })] },
    {
      allOf: [
        object({ a: { type: 'null' } }),
        { ...object({ b: { const: 1 } }), additionalProperties: { type: 'null' } },
      ],
    },
    { anyOf: [{ type: 'string' }, { type: 'integer' }], type: 'integer', maximum: 3 },
    { anyOf: [{ minimum: 2 }, { maximum: -2 }], type: 'integer', allOf: [{ anyOf: [{ maximum: 5 }, { const: 99 }] }] },
  ],
  [list(list({ type: 'integer' }, 1, 2), 1, 3), list({}, 0, 2), { type: 'string', nullable: true, maxLength: 3 }],
];

export const schemas: readonly Schema[] = groups.flat();

/** Refused, each with a word of the reason. */
export const refused: readonly [schema: Schema, reason: RegExp][] = [
  [{ type: 'array', items: { type: 'integer' }, uniqueItems: true }, /schema\.uniqueItems/],
  [object({ n: { type: 'integer', multipleOf: 3 } }), /schema\.properties\.n\.multipleOf/],
  [{ not: { type: 'string' } }, /schema\.not/],
  [{ if: {}, else: {} }, /schema\.if/],
  [{ type: 'object', patternProperties: { '^a': {} } }, /schema\.patternProperties/],
  [{ type: 'object', minProperties: 1 }, /schema\.minProperties/],
  [{ type: 'array', contains: { const: 1 } }, /schema\.contains/],
  [{ type: 'string', format: 'color' }, /schema\.format is color/],
  [{ type: 'string', pattern: '^(?=a)b$' }, /schema\.pattern .*lookaround/],
  [{ type: 'string', pattern: '(a)\\1' }, /schema\.pattern .*\\1/],
  [{ type: 'string', pattern: '^(a?){1000}$' }, /schema\.pattern .*empty/],
  [{ type: 'string', pattern: 'a', maxLength: 3 }, /schema\.pattern next to minLength or maxLength/],
  [{ oneOf: [{ type: 'integer' }, { type: 'number' }] }, /schema\.oneOf .*\[0\] and \[1\]/],
  [{ $ref: '#' }, /only refers to itself/],
  [
    { $ref: '#/$defs/a', $defs: { a: { anyOf: [{ $ref: '#/$defs/b' }] }, b: { $ref: '#/$defs/a' } } },
    /refers to itself/,
  ],
  [{ $ref: '#/$defs/missing' }, /does not exist/],
  [{ $ref: 'https://example.com/schema' }, /only #\/\.\.\. is supported/],
  [object({ self: { $ref: '#' } }), /without an end/],
  [nested(60, { type: 'null' }), /nests deeper/],
  [{ enum: times(30_000, i => i) }, /more than 20000 values/],
  [{ const: 'x'.repeat(300_000) }, /characters of JSON/],
  [{ type: 'integer', minimum: 5, maximum: 4 }, /no value satisfies/],
  [{ type: 'string', maxLength: 1e9 }, /schema\.maxLength/],
  [{ type: 'text' }, /schema\.type must be/],
  [{ type: 'array', items: [{ type: 'integer' }] }, /prefixItems/],
];

const record = (count: number, make: (i: number) => [string, unknown]): Record<string, unknown> =>
  Object.fromEntries(times(count, make));

/** Refused in bounded time, also if what cannot be enforced is left out. */
export const tooLarge: Readonly<Record<string, Schema>> = {
  'alternatives, each with each': { oneOf: times(6000, i => ({ const: i })) },
  'alternatives that are objects': {
    oneOf: times(1900, i => ({
      ...object({ kind: { const: i } }),
      properties: { [`p${i}`]: {}, kind: { const: i } },
    })),
  },
  'constants, each with each alternative': {
    enum: times(8000, i => [i]),
    items: { anyOf: times(1000, i => ({ const: -1 - i })) },
  },
  'the same constants in each alternative': {
    enum: times(8000, i => `v${i}`),
    anyOf: times(1000, () => ({ title: 't' })),
  },
  'one property, over and over': { allOf: times(4000, i => ({ properties: { a: { minimum: i } } })) },
  'alternatives of alternatives': {
    allOf: times(40, i => ({ anyOf: times(60, j => ({ properties: { [`p${i}`]: { const: j } } })) })),
  },
  'names that begin alike': {
    properties: record(1500, i => [`${'x'.repeat(100)}${i}`, {}]),
    additionalProperties: { type: 'integer' },
  },
  'a long pattern': { type: 'string', pattern: '.'.repeat(200_000) },
  'a pattern in each alternative': {
    ...{ type: 'string', pattern: '.'.repeat(5000) },
    anyOf: times(100, i => ({ title: `${i}` })),
  },
  'decimal places': {
    properties: record(1900, i => [`p${i}`, { type: 'number', minimum: i - 1234567.1234, maximum: 9876543.213 + i }]),
  },
  'the same type, many times': {
    allOf: [{ type: times(9000, () => 'string') }, { type: [...times(9000, () => 'number'), 'string'] }],
  },
  'keywords that only describe': {
    properties: record(1900, i => [`p${i}`, { $ref: '#/$defs/x', title: 'a' }]),
    $defs: { x: record(10_000, i => [`x${i}`, 1]) },
  },
  'references against the order': {
    ...object(record(900, i => [`a${i}`, { $ref: `#/$defs/d${i}` }])),
    $defs: record(900, i => [`d${i}`, i === 0 ? { type: 'null' } : object({ n: { $ref: `#/$defs/d${i - 1}` } })]),
  },
};

/** Followed in bounded time, whatever they cost elsewhere. */
export const hostile: readonly Schema[] = [
  { enum: times(15_000, i => `value ${i}`) },
  object(Object.fromEntries(times(500, i => [`property${i}`, { type: 'integer' }])), []),
  { type: 'string', pattern: '^(a+)+$' },
  { type: 'string', pattern: '^([a-z]{0,200}[0-9]){0,200}$' },
  { type: 'string', maxLength: 100_000 },
  { ...object({ [`${'x'.repeat(15_000)}`]: { type: 'integer' } }, []), additionalProperties: { type: 'boolean' } },
  nested(20, { type: 'string', minLength: 5 }),
  { anyOf: times(200, i => object({ [`a${i % 7}`]: { type: 'string', maxLength: i } })) },
];
