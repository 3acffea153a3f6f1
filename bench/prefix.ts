/**
 * How much faster is the first token if the beginning of a prompt is known: after another prompt with the same 4,096
 * tokens, and after the last message of a chat was edited?
 *
 * Validates: greedy answers must equal those of a model that knows nothing of the prompt.
 */
import { formatTable } from '../src/cli/table.ts';
import { type Conversation, loadModel, type Model, type Stream } from '../src/index.ts';
import { expectSameIds } from './concurrent.ts';
import { promptTokens } from './fill-context.ts';

interface Options {
  model: string;
  kv: string;
  /** Tokens of the known prefix. */
  prompt: string;
  threads: string;
  rounds: string;
  json: boolean;
}

interface Measurement {
  /** Milliseconds to the first token. */
  firstMs: number;
  promptTokens: number;
  reusedTokens: number;
  ids: readonly number[];
}

const SUFFIX = 16;
/** Tokens of the chat before its last message. */
const HISTORY = 560;
const LAST =
  'Now answer in one short sentence: which of the codecs above would you choose for a phone, and why that one?';
const EDITED =
  'Now answer in one short sentence: which of the codecs above would you choose for a server, and why that one?';
const greedy = { temperature: 0, ignoreEos: true, maxTokens: 16 };
const target = { speedup: 20, reused: 512 };

export async function benchPrefix(options: Options): Promise<void> {
  const { kv } = options;
  const [prefix, threads, rounds] = [options.prompt, options.threads, options.rounds].map(Number);
  const load = () => loadModel(options.model, { device: 'wasm', threads, kv, context: prefix + 1024 });
  const promptOf = (suffix: number) => [...promptTokens(prefix, 1), ...promptTokens(SUFFIX, 2 + suffix)];
  await using model = await load();
  await using fresh = await load();

  const cold = await measure(model.generate(promptOf(0), greedy));
  const again: Measurement[] = [];
  for (let i = 1; i <= rounds; i++) again.push(await measure(model.generate(promptOf(i), greedy)));
  const expected = await measure(fresh.generate(promptOf(rounds), greedy));
  expectSameIds(expected.ids, again[rounds - 1].ids, `${kv}: a prompt with a known prefix`);

  const edited = await measureEdit(model);
  const editedCold = await measure(fresh.chat(edited.messages, greedy));
  expectSameIds(editedCold.ids, edited.ids, `${kv}: an edited chat`);
  const byTime = (a: Measurement, b: Measurement) => a.firstMs - b.firstMs;
  const result = {
    kv,
    threads,
    prefix: { cold: [cold, expected].sort(byTime)[0], again: again.sort(byTime)[0] },
    edit: { cold: editedCold, again: edited },
  };
  console.log(options.json ? JSON.stringify(result, null, 1) : render(result));
}

async function measure(stream: Stream<unknown>): Promise<Measurement> {
  const start = performance.now();
  await stream.next();
  const firstMs = performance.now() - start;
  const { usage, ids } = await stream.result();
  return { firstMs, promptTokens: usage.promptTokens, reusedTokens: usage.reusedTokens, ids };
}

/** Answers a chat, then edits its last message. */
async function measureEdit(model: Model): Promise<Measurement & Pick<Conversation, 'messages'>> {
  await using conversation = model.conversation({ system: 'You are a helpful assistant.', messages: history(model) });
  await conversation.send(LAST, greedy).result();
  const index = conversation.messages.findLastIndex(({ role }) => role === 'user');
  const edited = await measure(conversation.edit(index, EDITED, greedy));
  const messages = conversation.messages.slice(0, index + 1);
  return { ...edited, messages };
}

/** Turns of a chat with about `HISTORY` tokens. */
function history({ tokenizer }: Model) {
  const turns = [];
  let tokens = 0;
  for (let i = 1; tokens < HISTORY; i++) {
    const turn = [
      { role: 'user', content: `Question ${i}: what does a codec with ${i} bits per value keep of a key?` },
      { role: 'assistant', content: `With ${i} bits it keeps one of ${2 ** i} levels per value, and a scale.` },
    ];
    tokens += turn.reduce((sum, { content }) => sum + tokenizer.encode(content).length + 5, 0);
    turns.push(...turn);
  }
  return turns;
}

interface Pair {
  cold: Measurement;
  again: Measurement;
}

function render({ kv, threads, prefix, edit }: { kv: string; threads: number; prefix: Pair; edit: Pair }): string {
  const line = (name: string, { firstMs, promptTokens, reusedTokens }: Measurement, than?: Measurement) => [
    name,
    String(promptTokens),
    String(reusedTokens),
    `${firstMs.toFixed(1)} ms`,
    than ? `${(than.firstMs / firstMs).toFixed(2)}x` : '',
  ];
  return [
    `Time to first token; ${kv}, ${threads} threads.`,
    formatTable(
      ['', 'prompt', 'reused', 'first token', 'x cold'],
      [
        line('prompt, cold', prefix.cold),
        line(`prompt, other last ${SUFFIX} tokens`, prefix.again, prefix.cold),
        line('chat, cold', edit.cold),
        line('chat, last message edited', edit.again, edit.cold),
      ],
    ),
    `Targets: a known prefix at least ${target.speedup}x; the edited chat reuses at least ${target.reused} tokens.`,
  ].join('\n');
}
