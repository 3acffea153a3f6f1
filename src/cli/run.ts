/** `kvasir run`: one prompt, one answer, streamed to stdout. */
import type { Command } from 'commander';
import { InputError } from '../util/errors.ts';
import {
  addModelOptions,
  addSamplingOptions,
  createPrefillBar,
  formatStats,
  loadWithProgress,
  type ModelOptions,
  runInterruptible,
  type SamplingFlags,
  SHADOW_HELP,
  samplingOptions,
  sanitizeForTerminal,
} from './model-command.ts';
import { readPrompt } from './read-text.ts';
import { formatLength, openSession, SESSION_HELP } from './session.ts';

interface Options extends ModelOptions, SamplingFlags {
  file?: string[];
  session?: string;
  raw?: boolean;
  stats?: boolean;
  json?: boolean;
}

const HELP = `
Examples:
  kvasir run model.gguf "Who was Kvasir?" --max-tokens 200 --stats
  kvasir run model.gguf "What does this say?" --file report.txt
  git diff | kvasir run model.gguf "Write a commit message for this."
  kvasir run model.gguf "And what became of him?" --session kvasir.kvsession`;

export function addRun(program: Command): void {
  const command = program
    .command('run')
    .description('answer a prompt')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`')
    .argument('[prompt]', 'the prompt; piped input is put before it; - reads it from stdin');
  addSamplingOptions(addModelOptions(command))
    .option('--file <file>', 'text file to put before the prompt; may be repeated', append)
    .option('--session <file>', SESSION_HELP)
    .option('--raw', 'continue the prompt as it is, without the chat template')
    .option('--shadow', SHADOW_HELP)
    .option('--stats', 'print speed, memory and quality on stderr')
    .option('--json', 'print the result as JSON at the end')
    .addHelpText('after', HELP)
    .action((model: string, prompt: string | undefined, options: Options) =>
      runInterruptible(signal => run(model, prompt, options, signal)),
    );
}

async function run(name: string, argument: string | undefined, options: Options, signal: AbortSignal): Promise<void> {
  const { session } = options;
  if (options.raw && session !== undefined)
    throw new InputError('--raw continues a text, and --session a conversation. Use one of them.');
  const prompt = await readPrompt({ argument, files: options.file, signal });
  await using model = await loadWithProgress(name, options, signal);
  // A conversation keeps its cache after the answer, which the statistics need.
  const conversation = await openSession(model, options);
  if (conversation.length > 0) console.error(`Resumed ${session}: ${formatLength(conversation)}.`);
  const bar = createPrefillBar();
  const sampling = { ...samplingOptions(options), signal, onPrefill: bar.onPrefill };
  const stream = options.raw
    ? conversation.generate(prompt, { ...sampling, parseSpecialTokens: true })
    : conversation.send(prompt, sampling);
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
  const { preset, spec: kv, bits, predicted } = model.plan;
  const setup = { preset, kv, bits, predicted, device, threads };
  if (options.json)
    console.log(JSON.stringify({ ...result, ...setup, memory: model.memory(), stats: model.stats() }, null, 1));
  else if (result.text !== '' && !result.text.endsWith('\n')) process.stdout.write('\n');
  for (const notice of result.notices) console.error(notice);
  if (options.stats) console.error(await formatStats(result, model, conversation));
  if (session !== undefined && result.ids.length > 0) await conversation.save(session);
}

const append = (value: string, list: string[] = []): string[] => [...list, value];
