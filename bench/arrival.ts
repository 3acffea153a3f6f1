/**
 * How much does a long prompt disturb chats that are being written, and how much do they slow it down?
 *
 * Validates: every chat must give the same greedy tokens as alone, and the prompt the same first token.
 */
import { formatTable } from '../src/cli/table.ts';
import { InputError, loadModel } from '../src/index.ts';
import { expectSameIds } from './concurrent.ts';
import { promptTokens } from './fill-context.ts';

interface Options {
  model: string;
  kv: string;
  /** Tokens of the prompt. */
  prompt: string;
  chats: string;
  threads: string;
  /** Tokens that each chat writes before the prompt arrives. */
  tokens: string;
  share?: string;
  json: boolean;
}

const CHAT_PROMPT = 64;
/** Context for what the chats write while the prompt is read. */
const CHAT_TOKENS = 3600;
const greedy = { temperature: 0, ignoreEos: true };
const target = { gap: 6, prompt: 1.5 };

export async function benchArrival(options: Options): Promise<void> {
  const { kv } = options;
  const [length, chats, threads, tokens] = [options.prompt, options.chats, options.threads, options.tokens].map(Number);
  const prefillShare = options.share === undefined ? undefined : Number(options.share);
  const context = Math.max(length, CHAT_PROMPT) + CHAT_TOKENS;
  const load = () => loadModel(options.model, { device: 'wasm', threads, kv, context, prefillShare });
  const prompt = promptTokens(length, 100);
  // Two models: in the second one, nothing of the prompt is known.
  await using quiet = await load();
  console.error(`bench: a prompt of ${length} tokens alone`);
  const alone = await quiet.generate(prompt, { ...greedy, maxTokens: 1 }).result();
  await using busy = await load();
  console.error(`bench: the same prompt beside ${chats} chats`);
  const streams = Array.from({ length: chats }, (_, i) => busy.generate(promptTokens(CHAT_PROMPT, i + 1), greedy));
  const times: number[][] = streams.map(() => []);
  let [arrival, answered] = [Infinity, Infinity];
  let arrive = () => {};
  const ready = new Promise<void>(resolve => {
    arrive = resolve;
  });
  const chat = async (i: number) => {
    // One token more than until the prompt's answer: that gap counts too.
    while (!(times[i][times[i].length - 1] > answered)) {
      if ((await streams[i].next()).done)
        throw new InputError(`A chat filled the context of ${busy.context} tokens. Use a shorter --prompt.`);
      times[i].push(performance.now());
      if (times.every(({ length }) => length > tokens)) arrive();
    }
    await streams[i].return();
    return streams[i].partial.ids;
  };
  const read = async () => {
    await ready;
    arrival = performance.now();
    const { ids } = await busy.generate(prompt, { ...greedy, maxTokens: 1 }).result();
    answered = performance.now();
    return ids;
  };
  const [promptIds, ...chatIds] = await Promise.all([read(), ...streams.map((_, i) => chat(i))]);

  console.error('bench: the same chats alone');
  expectSameIds(alone.ids, promptIds, `${kv}: the prompt beside ${chats} chats`);
  for (const [i, ids] of chatIds.entries()) {
    const expected = quiet.generate(promptTokens(CHAT_PROMPT, i + 1), { ...greedy, maxTokens: ids.length });
    expectSameIds((await expected.result()).ids, ids, `${kv}: chat ${i} beside a prompt`);
  }

  const gaps = splitGaps(times, arrival, answered);
  const result = {
    kv,
    threads,
    chats,
    promptTokens: length,
    before: summarize(gaps.before),
    during: summarize(gaps.during),
    aloneMs: alone.timings.prefillMs,
    besideMs: answered - arrival,
  };
  console.log(options.json ? JSON.stringify(result, null, 1) : render(result));
}

/** Milliseconds between the tokens of a chat, before the prompt arrived and until it was answered. */
function splitGaps(times: readonly number[][], arrival: number, answered: number) {
  const start = Math.max(...times.map(chat => chat[0]));
  const gaps = times.flatMap(chat => chat.slice(1).map((to, i) => ({ from: chat[i], to })));
  const length = ({ from, to }: { from: number; to: number }) => to - from;
  return {
    before: gaps.filter(({ from, to }) => from >= start && to <= arrival).map(length),
    during: gaps.filter(({ from, to }) => to > arrival && from < answered).map(length),
  };
}

interface Summary {
  gaps: number;
  median: number;
  p99: number;
}

function summarize(gaps: readonly number[]): Summary {
  const sorted = gaps.toSorted((a, b) => a - b);
  const quantile = (q: number) => sorted[Math.ceil(q * sorted.length) - 1];
  return { gaps: sorted.length, median: quantile(0.5), p99: quantile(0.99) };
}

interface ArrivalResult {
  kv: string;
  threads: number;
  chats: number;
  promptTokens: number;
  before: Summary;
  during: Summary;
  aloneMs: number;
  besideMs: number;
}

function render({ kv, threads, chats, promptTokens, before, during, aloneMs, besideMs }: ArrivalResult): string {
  const line = (name: string, { gaps, median, p99 }: Summary) => [
    name,
    String(gaps),
    `${median.toFixed(1)} ms`,
    `${p99.toFixed(1)} ms`,
  ];
  const seconds = (ms: number) => `${(ms / 1000).toFixed(1)} s`;
  return [
    `${chats} chats, a prompt of ${promptTokens} tokens arrives; ${kv}, ${threads} threads.`,
    formatTable(['between tokens', 'gaps', 'median', 'p99'], [line('before', before), line('during', during)]),
    `p99 during / median before: ${(during.p99 / before.median).toFixed(2)}x (target: at most ${target.gap}x)`,
    `prompt: ${seconds(aloneMs)} alone, ${seconds(besideMs)} beside the chats: ` +
      `${(besideMs / aloneMs).toFixed(2)}x (target: at most ${target.prompt}x)`,
  ].join('\n');
}
