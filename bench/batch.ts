/**
 * How many tokens per second do several sequences decode together, by depth, compared with llama.cpp on the same file,
 * threads and number of sequences?
 *
 * Validates: a sequence must give the same greedy tokens beside others as alone. The engines take turns, round by round,
 * so that a loaded machine slows all of them down; while one is timed, the others are idle.
 */
import { formatTable } from '../src/cli/table.ts';
import { type Conversation, type GenerateOptions, InputError, loadModel } from '../src/index.ts';
import { type BatchSetup, type Contender, decodeRate, expectSameIds } from './concurrent.ts';
import { promptTokens } from './fill-context.ts';
import { spawnLlama } from './llama-process.ts';

interface Options {
  model: string;
  kv: string;
  depths: string;
  sequences: string;
  threads: string;
  tokens: string;
  rounds: string;
  peers: boolean;
  json: boolean;
}

interface Row {
  depth: number;
  sequences: number;
  /** Best tokens per second of all sequences, by contender. */
  rates: Record<string, number>;
}

const llamaSettings = [
  { kv: 'F16', flash: true },
  { kv: 'F16', flash: false },
  { kv: 'Q8_0', flash: true },
  { kv: 'Q4_0', flash: true },
];

export async function benchBatch(options: Options): Promise<void> {
  const [depths, counts] = [options.depths, options.sequences].map(parseNumbers);
  const [threads, tokens, rounds] = [options.threads, options.tokens, options.rounds].map(Number);
  if (!(tokens >= 4 && rounds >= 1))
    throw new InputError(`batch needs --tokens of at least 4 and --rounds of at least 1; got ${tokens} and ${rounds}.`);
  const [sequences, context] = [Math.max(...counts), Math.max(...depths) + 1 + tokens];
  const setup: BatchSetup = { model: options.model, threads, sequences, context, tokens };
  const ours = await Promise.all(options.kv.split(',').map(kv => openKvasir(setup, kv)));
  const peers = await Promise.all(options.peers ? llamaSettings.map(setting => spawnLlama(setup, setting)) : []);
  const contenders = [...ours, ...peers];
  const rows: Row[] = [];
  try {
    for (const depth of depths) {
      for (const contender of contenders) {
        console.error(`bench: ${contender.name} reads ${sequences} prompts of ${depth + 1} tokens`);
        await contender.fill(depth, sequences);
      }
      for (const count of counts) rows.push(await measure(contenders, depth, count, rounds));
    }
  } finally {
    await Promise.all(contenders.map(contender => contender.close()));
  }
  const names = { ours: ours.map(({ name }) => name), peers: peers.map(({ name }) => name) };
  if (options.json) console.log(JSON.stringify(rows, null, 1));
  else console.log(render(rows, names, setup, rounds));
}

function parseNumbers(list: string): number[] {
  const numbers = list.split(',').map(Number);
  if (!numbers.every(Number.isInteger))
    throw new InputError(`Expected whole numbers separated by commas; got "${list}".`);
  return numbers.sort((a, b) => a - b);
}

async function measure(contenders: readonly Contender[], depth: number, sequences: number, rounds: number) {
  const rates: Record<string, number> = {};
  for (let round = 0; round < rounds; round++)
    for (const { name, decode } of contenders) rates[name] = Math.max(rates[name] ?? 0, await decode(sequences));
  return { depth, sequences, rates };
}

/** Every sequence is a conversation, which keeps its cache from round to round. */
async function openKvasir({ model: path, threads, context, tokens }: BatchSetup, kv: string): Promise<Contender> {
  const model = await loadModel(path, { device: 'wasm', threads, kv, context });
  const options: GenerateOptions = { temperature: 0, ignoreEos: true, maxTokens: tokens };
  const conversations: Conversation[] = [];
  let depth = 0;
  let alone: number[][] = [];
  // `depth` tokens are in the cache when the last one of the prompt is evaluated.
  const start = (i: number) => conversations[i].generate(promptTokens(depth + 1, i + 1), options);
  return {
    name: `kvasir ${kv}`,
    async fill(newDepth, count) {
      depth = newDepth;
      alone = [];
      for (let i = 0; i < count; i++) {
        conversations[i] ??= model.conversation();
        alone.push((await start(i).result()).ids);
      }
    },
    async decode(count) {
      const streams = Array.from({ length: count }, (_, i) => start(i));
      const rate = await decodeRate(streams, tokens);
      for (const [i, stream] of streams.entries())
        expectSameIds(alone[i], (await stream.result()).ids, `${kv}: sequence ${i} beside ${count - 1} others`);
      return rate;
    },
    close: () => model.dispose(),
  };
}

function render(rows: readonly Row[], names: { ours: string[]; peers: string[] }, setup: BatchSetup, rounds: number) {
  const { threads, tokens } = setup;
  const ratio = (a: number, b: number | undefined) => (b ? `${(a / b).toFixed(2)}x` : '-');
  const single = (name: string, depth: number) =>
    rows.find(row => row.depth === depth && row.sequences === 1)?.rates[name];
  const header = ['depth', 'sequences', ...names.ours.flatMap(name => [name, 'x one', 'x llama.cpp'])];
  if (names.peers.length > 0) header.push('llama.cpp, best', 'x one', 'setting');
  const lines = rows.map(({ depth, sequences, rates }) => {
    const peer = names.peers.toSorted((a, b) => rates[b] - rates[a])[0];
    const bestSingle = Math.max(0, ...names.peers.map(name => single(name, depth) ?? 0));
    const cells = names.ours.flatMap(name => [
      rates[name].toFixed(1),
      ratio(rates[name], single(name, depth)),
      ratio(rates[name], rates[peer]),
    ]);
    if (peer) cells.push(rates[peer].toFixed(1), ratio(rates[peer], bestSingle), peer);
    return [String(depth), String(sequences), ...cells];
  });
  return [
    `Tokens per second of all sequences together, ${threads} threads; best of ${rounds} rounds of ${tokens} tokens each.`,
    formatTable(header, lines),
    "x one: compared with one sequence of the same engine. x llama.cpp: compared with llama.cpp's best setting.",
  ].join('\n');
}
