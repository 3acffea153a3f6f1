/** `kvasir run`: one prompt, one answer, streamed to stdout. */
import type { Command } from 'commander';
import {
  addModelOptions,
  addSampleOptions,
  forTerminal,
  interruptible,
  loadForUser,
  type ModelOptions,
  prefillBar,
  type SampleFlags,
  sampleOptions,
  statsOf,
} from './session.ts';
import { readPrompt } from './text.ts';
import { inOptions } from './words.ts';

interface Options extends ModelOptions, SampleFlags {
  file?: string[];
  raw?: boolean;
  stats?: boolean;
  json?: boolean;
}

const HELP = `
Examples:
  kvasir run model.gguf "Who was Kvasir?" --kv tq4 --max-tokens 200 --stats
  kvasir run model.gguf "What does this say?" --file report.txt
  git diff | kvasir run model.gguf "Write a commit message for this."`;

export function addRun(program: Command): void {
  const command = program
    .command('run')
    .description('answer a prompt')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .argument('[prompt]', 'what to answer; what is piped in comes before it, and - is stdin alone');
  addSampleOptions(addModelOptions(command))
    .option('--file <file>', 'a text that comes before the prompt; may be given several times', addTo)
    .option('--raw', 'go on from the prompt as it is, without the chat template')
    .option('--stats', 'speed and memory, on stderr')
    .option('--json', 'the result as JSON, in the end')
    .addHelpText('after', HELP)
    .action((model: string, prompt: string | undefined, options: Options) =>
      interruptible(signal => run(model, prompt, options, signal)),
    );
}

async function run(name: string, given: string | undefined, options: Options, signal: AbortSignal): Promise<void> {
  const prompt = await readPrompt({ given, files: options.file, signal });
  await using model = await loadForUser(name, options, signal);
  // Of this one the statistics are shown while it still has its cache.
  const talk = model.conversation();
  const bar = prefillBar();
  const sampling = { ...sampleOptions(options), signal, onPrefill: bar.onPrefill };
  const messages = [
    ...(options.system === undefined ? [] : [{ role: 'system', content: options.system }]),
    { role: 'user', content: prompt },
  ];
  const stream = options.raw ? talk.generate(prompt, { ...sampling, special: true }) : talk.chat(messages, sampling);
  try {
    for await (const piece of stream) {
      bar.end();
      if (!options.json) process.stdout.write(forTerminal(typeof piece === 'string' ? piece : piece.text));
    }
  } finally {
    bar.end();
  }
  const result = await stream.result();
  const { name: device, threads } = model.device;
  if (options.json)
    console.log(JSON.stringify({ ...result, kv: model.plan.spec, device, threads, memory: model.memory() }, null, 1));
  else if (result.text !== '' && !result.text.endsWith('\n')) process.stdout.write('\n');
  for (const notice of result.notices) console.error(inOptions(notice));
  if (options.stats) console.error(await statsOf(result, model, talk));
}

const addTo = (value: string, list: string[] = []): string[] => [...list, value];
