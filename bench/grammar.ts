/**
 * How much longer does a token take if the answer must follow a JSON Schema? Pairs of answers to the same questions:
 * under a schema, and free ones of as many tokens.
 *
 * Validates: answers under a schema must be complete and valid.
 */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { formatTable } from '../src/cli/table.ts';
import { InputError, loadModel, type Model } from '../src/index.ts';

interface Options {
  model: string;
  kv: string;
  threads: string;
  rounds: string;
  /** Answers at the same time. */
  sequences: string;
  json: boolean;
}

const object = (properties: Record<string, object>) => ({
  ...{ type: 'object', properties, required: Object.keys(properties), additionalProperties: false },
});
// With a limit, as a small model may not end a string by itself. It is also what costs most: near it, masks differ.
const text = { type: 'string', maxLength: 60 };

const schemas: Record<string, object> = {
  flat: object({ name: text, realm: text, age: { type: 'integer', minimum: 0, maximum: 9999 } }),
  nested: object({
    name: text,
    home: object({ hall: text, place: object({ realm: text, far: { type: 'boolean' } }) }),
  }),
  array: object({
    gods: {
      ...{ type: 'array', minItems: 3, maxItems: 5 },
      items: object({ name: text, kind: { enum: ['aesir', 'vanir', 'jotun'] } }),
    },
  }),
};

const names = ['Odin', 'Thor', 'Freyja', 'Loki', 'Njord', 'Heimdall', 'Tyr', 'Kvasir'];
const TARGET = 1.3;

interface Pair {
  /** Milliseconds per token. */
  bound: number;
  free: number;
  tokens: number;
}

interface Row extends Pair {
  schema: string;
  sequences: number;
  /** Whether the schema was new. */
  isNew: boolean;
}

export async function benchGrammar(options: Options): Promise<void> {
  const [threads, rounds] = [options.threads, options.rounds].map(Number);
  const counts = options.sequences.split(',').map(Number);
  await using model = await loadModel(options.model, { device: 'wasm', threads, kv: options.kv, context: 2048 });
  // The code is compiled, and the vocabulary read, before anything is timed.
  await measurePair(model, { const: 'warm' }, 1);
  const rows: Row[] = [];
  for (const [schema, content] of Object.entries(schemas)) {
    console.error(`bench: ${schema}`);
    rows.push({ schema, sequences: 1, isNew: true, ...(await measurePair(model, content, 1)) });
    for (const sequences of counts) {
      const pairs: Pair[] = [];
      while (pairs.length < rounds) pairs.push(await measurePair(model, content, sequences));
      pairs.sort((a, b) => a.bound / a.free - b.bound / b.free);
      rows.push({ schema, sequences, isNew: false, ...pairs[rounds >> 1] });
    }
  }
  console.log(options.json ? JSON.stringify(rows, null, 1) : render(rows, options));
}

async function measurePair(model: Model, schema: object, sequences: number): Promise<Pair> {
  const ask = (options: (i: number) => object) =>
    Promise.all(
      Array.from({ length: sequences }, (_, i) => {
        const content = `Describe ${names[i % names.length]} and others of Norse mythology, as JSON.`;
        return model.chat([{ role: 'user', content }], { temperature: 0, ...options(i) }).result();
      }),
    );
  const bound = await ask(() => ({ schema }));
  const isValid = new Ajv2020().compile(schema);
  for (const { text } of bound)
    if (!isValid(JSON.parse(text))) throw new InputError(`The answer does not follow its schema: ${text}`);
  const free = await ask(i => ({ ignoreEos: true, maxTokens: bound[i].ids.length }));
  const tokens = bound.reduce((sum, { ids }) => sum + ids.length, 0);
  const msPerToken = (results: typeof bound) =>
    results.reduce((sum, { timings }) => sum + timings.decodeMs, 0) / tokens;
  return { bound: msPerToken(bound), free: msPerToken(free), tokens };
}

function render(rows: readonly Row[], { kv, threads }: Options): string {
  return [
    `Time per token of answers under a JSON Schema and of free ones; ${kv}, ${threads} threads.`,
    formatTable(
      ['schema', 'answers at once', 'tokens', 'free', 'schema', 'x free'],
      rows.map(({ schema, sequences, isNew, tokens, bound, free }) => [
        isNew ? `${schema}, first answer` : schema,
        sequences,
        tokens,
        `${free.toFixed(1)} ms`,
        `${bound.toFixed(1)} ms`,
        `${(bound / free).toFixed(2)}x`,
      ]),
    ),
    `Target: at most ${TARGET}x.`,
  ].join('\n');
}
