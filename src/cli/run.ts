/** `kvasir run`: one prompt, one answer, streamed to stdout. */
import type { Command } from 'commander';
import { withFlagNames } from './flag-names.ts';
import {
  addModelOptions,
  addSamplingOptions,
  createPrefillBar,
  formatStats,
  loadWithProgress,
  type ModelOptions,
  runInterruptible,
  type SamplingFlags,
  samplingOptions,
  sanitizeForTerminal,
} from './model-command.ts';
import { readPrompt } from './read-text.ts';

interface Options extends ModelOptions, SamplingFlags {
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
    .argument('[prompt]', 'the prompt; piped input is put before it; - reads it from stdin');
  addSamplingOptions(addModelOptions(command))
    .option('--file <file>', 'text file to put before the prompt; may be repeated', append)
    .option('--raw', 'continue the prompt as it is, without the chat template')
    .option('--stats', 'print speed, memory and quality on stderr')
    .option('--json', 'print the result as JSON at the end')
    .addHelpText('after', HELP)
    .action((model: string, prompt: string | undefined, options: Options) =>
      runInterruptible(signal => run(model, prompt, options, signal)),
    );
}

async function run(name: string, argument: string | undefined, options: Options, signal: AbortSignal): Promise<void> {
  const prompt = await readPrompt({ argument, files: options.file, signal });
  await using model = await loadWithProgress(name, options, signal);
  // A conversation keeps its cache after the answer, which the statistics need.
  const conversation = model.conversation();
  const bar = createPrefillBar();
  const sampling = { ...samplingOptions(options), signal, onPrefill: bar.onPrefill };
  const messages = [
    ...(options.system === undefined ? [] : [{ role: 'system', content: options.system }]),
    { role: 'user', content: prompt },
  ];
  const stream = options.raw
    ? conversation.generate(prompt, { ...sampling, parseSpecialTokens: true })
    : conversation.chat(messages, sampling);
  try {
    for await (const piece of stream) {
      bar.end();
      if (!options.json) process.stdout.write(sanitizeForTerminal(typeof piece === 'string' ? piece : piece.text));
    }
  } finally {
    bar.end();
  }
  const result = await stream.result();
  const { name: device, threads } = model.device;
  if (options.json)
    console.log(JSON.stringify({ ...result, kv: model.plan.spec, device, threads, memory: model.memory() }, null, 1));
  else if (result.text !== '' && !result.text.endsWith('\n')) process.stdout.write('\n');
  for (const notice of result.notices) console.error(withFlagNames(notice));
  if (options.stats) console.error(await formatStats(result, model, conversation));
}

const append = (value: string, list: string[] = []): string[] => [...list, value];
