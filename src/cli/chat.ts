/** `kvasir chat`: a chat in the terminal. The KV cache is kept, so each turn only prefills new tokens. */
import { homedir } from 'node:os';
import type { Command } from 'commander';
import { closestName } from '../closest-name.ts';
import type { Model } from '../engine/model.ts';
import type { Result } from '../engine/stream.ts';
import { KvasirError } from '../errors.ts';
import { formatBytes, formatCount } from '../units.ts';
import { openChatInput } from './chat-input.ts';
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
import { type Document, joinPromptParts, readPromptFile } from './read-text.ts';

type Options = ModelOptions & SamplingFlags;

const HELP = `/stats      show speed, memory and quality of the last answer
/file PATH  attach a file to your next message
/reset      clear the conversation
/exit       exit (or Ctrl-D, or Ctrl-C twice)
/help       show this help
""" starts and ends a message of several lines. A paste is one message.
Ctrl-C stops an answer. Text typed during an answer goes into your next message.`;

export function addChat(program: Command): void {
  const command = program
    .command('chat')
    .description('chat with a model; the KV cache is kept between turns')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`');
  addSamplingOptions(addModelOptions(command)).action(async (name: string, options: Options) => {
    let model: Model | undefined;
    await runInterruptible(async signal => {
      model = await loadWithProgress(name, options, signal);
    });
    if (!model) return;
    await using loaded = model;
    await chat(loaded, options);
  });
}

async function chat(model: Model, options: Options): Promise<void> {
  let answering: AbortController | undefined;
  const input = openChatInput(() => answering?.abort());
  const session = createChatSession(model, options);
  try {
    if (input.isTerminal)
      console.log(`${model.config.name}, ${model.plan.spec}, ${model.device.why}. /help shows commands.`);
    for (let message = await input.next(); message; message = await input.next()) {
      const text = message.text.trim();
      if (text === '/exit') break;
      if (text === '') continue;
      if (text.startsWith('/') && !message.literal)
        await session.command(text).then(console.log, error => console.error(userErrorMessage(error)));
      else {
        answering = new AbortController();
        await session.answer(text, answering.signal);
        answering = undefined;
      }
    }
  } finally {
    input.close();
    await session.dispose();
  }
}

/** A conversation with the user's attached files, the turn number and the last result. */
function createChatSession(model: Model, options: Options) {
  const conversation = model.conversation({ system: options.system });
  let attached: Document[] = [];
  let last: Result | undefined;
  let turn = 0;

  /** The seed changes per turn: with a constant one, the same question would always get the same answer. */
  const sampling = () => {
    const { seed, ...rest } = samplingOptions(options);
    return { ...rest, seed: seed === undefined ? undefined : seed + turn };
  };
  const commands: Record<string, (rest: string) => string | Promise<string>> = {
    '/help': () => HELP,
    async '/reset'() {
      await conversation.reset();
      attached = [];
      turn = 0;
      return 'Conversation cleared.';
    },
    async '/file'(rest) {
      const path = rest.replace(/^(["'])(.*)\1$/, '$2').replace(/^~(?=$|[\\/])/, homedir());
      if (path === '') return 'No file was given. Usage: /file PATH';
      const text = await readPromptFile(path, 'the path after /file');
      attached.push({ path, text });
      const tokens = model.tokenizer.encode(text).length;
      return `${path}: ${formatCount(tokens)} tokens (the context holds ${formatCount(model.context)}). It is added before your next message.`;
    },
    async '/stats'() {
      const { length, bytes } = conversation;
      const cache = `cache: ${formatCount(length)} of ${formatCount(model.context)} tokens, ${formatBytes(bytes)}`;
      return last ? `${cache}\n${await formatStats(last, model, conversation)}` : cache;
    },
  };
  return {
    async command(line: string): Promise<string> {
      const [name] = line.split(/\s/, 1);
      if (Object.hasOwn(commands, name)) return commands[name](line.slice(name.length).trim());
      const suggestion = closestName(name, [...Object.keys(commands), '/exit']);
      return `Unknown command ${name}.${suggestion ? ` Did you mean ${suggestion}?` : ''}\n${HELP}`;
    },
    /** Streams an answer. A user error (such as a full context) ends the turn, not the chat. */
    async answer(text: string, signal: AbortSignal): Promise<void> {
      const bar = createPrefillBar();
      const message = joinPromptParts(attached, text);
      const stream = conversation.send(message, { ...sampling(), signal, onPrefill: bar.onPrefill });
      last = undefined;
      try {
        for await (const piece of stream) {
          bar.end();
          process.stdout.write(sanitizeForTerminal(piece));
        }
        bar.end();
        last = await stream.result();
        // A question stopped before its answer began is dropped; its files stay attached to the next one.
        if (last.ids.length > 0) attached = [];
        turn++;
        process.stdout.write(last.finish === 'cancelled' ? ' (stopped)\n' : '\n');
        for (const notice of last.notices) console.error(withFlagNames(notice));
      } catch (error) {
        console.error(`${userErrorMessage(error)} /reset clears the conversation.`);
      } finally {
        bar.end();
      }
    },
    dispose: () => conversation.dispose(),
  };
}

/** The message of a user error; other errors are thrown again. */
function userErrorMessage(error: unknown): string {
  if (!(error instanceof KvasirError)) throw error;
  return `kvasir: ${withFlagNames(error.message)}`;
}
