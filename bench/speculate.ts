/**
 * How much faster is an answer with guessed tokens: where it repeats a file or a document, and where it repeats nothing?
 *
 * Validates: the answers with and without guesses are the same tokens.
 */
import { readFileSync } from 'node:fs';
import { formatTable } from '../src/cli/table.ts';
import { loadModel, type Model, type Result } from '../src/index.ts';
import { expectSameIds } from './concurrent.ts';

interface Options {
  model: string;
  kv: string;
  /** Max tokens of an answer. */
  tokens: string;
  threads: string;
  rounds: string;
  json: boolean;
}

function readTasks(): Record<string, string> {
  const code = readFileSync('src/engine/output-queue.ts', 'utf8');
  const page = readFileSync('docs/concepts.md', 'utf8').slice(0, 4000);
  return {
    'edit a file': `${code}\n\nRewrite this file with MAX_WAITING = 128 instead of 64. Write the whole file, and nothing else.`,
    'quote a document': `${page}\n\nWhat happens to new keys and values, until they are in a sealed page? Quote the text.`,
    'a question': `${page}\n\nExplain in your own words, in a few sentences, why this cache needs little memory.`,
    'a story': 'Write a story about a fisherman who finds a letter in a bottle.',
  };
}

/** Nobody shall wait longer because of guesses. */
const target = 0.97;

interface Row {
  task: string;
  /** Best tokens per second. */
  plain: number;
  guessed: number;
  usage: Result['usage'];
}

export async function benchSpeculate(options: Options): Promise<void> {
  const { kv } = options;
  const [threads, rounds, maxTokens] = [options.threads, options.rounds, options.tokens].map(Number);
  const load = (speculate: boolean) =>
    loadModel(options.model, { device: 'wasm', threads, kv, context: 4096, speculate });
  await using plain = await load(false);
  await using guessing = await load(true);
  const rows: Row[] = [];
  for (const [task, content] of Object.entries(readTasks())) {
    const answer = (model: Model) =>
      model.complete([{ role: 'user', content }], { temperature: 0, ignoreEos: true, maxTokens });
    const row = { task, plain: 0, guessed: 0 };
    let usage: Result['usage'] | undefined;
    // In turn, so that other load on the machine meets both.
    for (let round = 0; round < rounds; round++) {
      const [without, result] = [await answer(plain), await answer(guessing)];
      expectSameIds(without.ids, result.ids, task);
      row.plain = Math.max(row.plain, without.timings.decodeRate);
      row.guessed = Math.max(row.guessed, result.timings.decodeRate);
      usage = result.usage;
    }
    rows.push({ ...row, usage: usage! });
  }
  console.log(options.json ? JSON.stringify(rows, null, 1) : render(rows, kv, threads));
}

const render = (rows: readonly Row[], kv: string, threads: number): string =>
  [
    `Tokens per second with and without guessed tokens; ${kv}, ${threads} threads.`,
    formatTable(
      ['', 'without', 'with', 'x', 'guessed', 'right', 'of'],
      rows.map(({ task, plain, guessed, usage }) => [
        task,
        plain.toFixed(1),
        guessed.toFixed(1),
        (guessed / plain).toFixed(2),
        String(usage.draftedTokens),
        String(usage.acceptedTokens),
        String(usage.completionTokens),
      ]),
    ),
    `Target: at least ${target}x everywhere.`,
  ].join('\n');
