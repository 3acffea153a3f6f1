/** `kvasir chat`: a chat in the terminal. The KV cache is kept, so each turn only prefills new tokens. */
import { homedir } from 'node:os';
import type { Command } from 'commander';
import type { Model } from '../api/model.ts';
import type { Conversation } from '../chat/conversation.ts';
import type { ChatOptions } from '../chat/conversation-options.ts';
import type { Result, Stream } from '../engine/stream.ts';
import { closestName } from '../util/closest-name.ts';
import { CapacityError, InputError, KvasirError } from '../util/errors.ts';
import { formatBytes, formatCount } from '../util/units.ts';
import { createBranches } from './branches.ts';
import { openChatInput } from './chat-input.ts';
import { flagName } from './flag-names.ts';
import {
  addModelArgument,
  addModelOptions,
  addSamplingOptions,
  createPrefillBar,
  loadWithProgress,
  type ModelOptions,
  runInterruptible,
  type SamplingFlags,
  samplingOptions,
  sanitizeForTerminal,
} from './model-command.ts';
import { type Document, joinPromptParts, readPromptFile } from './read-text.ts';
import { formatLastExchange, formatLength, openSession, previewOf, SESSION_HELP } from './session.ts';
import { formatDevice, formatStats } from './stats.ts';

type Options = ModelOptions & SamplingFlags & { session?: string };

const HELP = `/stats        show speed, memory and quality of the last answer
/file PATH    attach a file to your next message
/regenerate   answer your last message again
/undo         detach files that wait for your next message, or remove your last message and its answer
/fork         continue in a copy of the conversation, a new branch
/branch [N]   list the branches, or continue in branch N
/save [FILE]  save to a session file, now and after each answer
/load FILE    continue a saved conversation, as a new branch
/reset        clear the conversation
/exit         exit (or Ctrl-D, or Ctrl-C twice)
/help         show this help
""" starts and ends a message of several lines. A paste is one message.
Ctrl-C stops an answer. Text typed during an answer goes into your next message.`;

export function addChat(program: Command): void {
  const command = program.command('chat').description('chat with a model; the KV cache is kept between turns');
  addSamplingOptions(addModelOptions(addModelArgument(command)))
    .option('--session <file>', SESSION_HELP)
    .action(async (name: string, options: Options) => {
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
  const conversation = await openSession(model, options);
  const turns = createTurns(model, conversation, options);
  let answering: AbortController | undefined;
  const input = openChatInput(() => answering?.abort());
  try {
    if (input.isTerminal)
      console.log(`${model.config.name}, ${model.plan.spec}, ${formatDevice(model.device.why)}. /help shows commands.`);
    if (conversation.length > 0)
      console.error(`Resumed ${options.session}: ${formatLength(conversation)}.${formatLastExchange(conversation)}`);
    for (let message = await input.next(); message; message = await input.next()) {
      const text = message.text.trim();
      if (text === '/exit') break;
      if (text === '') continue;
      answering = new AbortController();
      if (text.startsWith('/') && !message.literal) await turns.command(text, answering.signal);
      else await turns.send(text, answering.signal);
      answering = undefined;
    }
  } finally {
    input.close();
    await turns.close();
  }
}

/** The turns of a chat: messages and commands, with the attached files, the turn number and the last result. */
function createTurns(model: Model, first: Conversation, options: Options) {
  const branches = createBranches(model, { conversation: first, file: options.session }, userErrorMessage);
  let attached: Document[] = [];
  let last: Result | undefined;
  let turn = first.messages.filter(({ role }) => role === 'assistant').length;

  /** Streams an answer. A user error (such as a full context) ends the turn, not the chat. */
  const answer = async (ask: (options: ChatOptions) => Stream<string>, signal: AbortSignal): Promise<void> => {
    const bar = createPrefillBar();
    // With a constant seed, the same question would always get the same answer.
    const { seed, ...sampling } = samplingOptions(options);
    const turnSeed = seed === undefined ? undefined : seed + turn;
    last = undefined;
    try {
      const stream = ask({ ...sampling, seed: turnSeed, signal, onPrefill: bar.onPrefill });
      for await (const piece of stream) {
        bar.end();
        process.stdout.write(sanitizeForTerminal(piece));
      }
      bar.end();
      last = await stream.result();
      turn++;
      process.stdout.write(last.finish === 'cancelled' ? ' (stopped)\n' : '\n');
      for (const notice of last.notices) console.error(notice);
    } catch (error) {
      const hint = error instanceof CapacityError ? ' /reset clears the conversation.' : '';
      console.error(`${userErrorMessage(error)}${hint}`);
    } finally {
      bar.end();
    }
    if (last && last.ids.length > 0) await branches.saveChange();
  };

  const attachedNames = () => attached.map(({ path }) => path).join(', ');
  /** Takes the attached files away, and returns their names. */
  const detach = (): string => {
    const names = attachedNames();
    attached = [];
    return names;
  };

  /** What a command returns is printed. */
  const commands: Record<string, (rest: string, signal: AbortSignal) => string | Promise<string | undefined>> = {
    '/help': () => HELP,
    async '/stats'() {
      const { length, bytes } = branches.conversation;
      const cache = `cache: ${formatCount(length)} of ${formatCount(model.context)} tokens, ${formatBytes(bytes)}`;
      return last ? `${cache}\n${await formatStats(last, model, branches.conversation)}` : cache;
    },
    async '/file'(rest) {
      const path = pathArgument(rest, '/file PATH');
      const text = await readPromptFile(path, 'the path after /file');
      attached.push({ path, text });
      const tokens = model.tokenizer.encode(text).length;
      return `${path}: ${formatCount(tokens)} tokens (the context holds ${formatCount(model.context)}). It is added before your next message.`;
    },
    async '/regenerate'(_, signal) {
      await answer(options => branches.conversation.regenerate(options), signal);
      return undefined;
    },
    async '/undo'() {
      if (attached.length > 0) return `Detached ${detach()}.`;
      const [question] = await branches.conversation.undo();
      last = undefined;
      return `Removed "${previewOf(question)}" and its answer.${await branches.saveChange()}`;
    },
    '/fork': () => branches.fork(),
    '/branch'(rest) {
      if (rest === '') return branches.list();
      last = undefined;
      return branches.select(rest);
    },
    '/save': rest => branches.save(rest && pathArgument(rest, '/save FILE')),
    '/load'(rest) {
      last = undefined;
      return branches.load(pathArgument(rest, '/load FILE'));
    },
    async '/reset'() {
      await branches.conversation.reset();
      attached = [];
      turn = 0;
      last = undefined;
      return `Conversation cleared.${await branches.saveChange()}`;
    },
  };
  return {
    async command(line: string, signal: AbortSignal): Promise<void> {
      const [name] = line.split(/\s/, 1);
      if (!Object.hasOwn(commands, name)) {
        const suggestion = closestName(name, [...Object.keys(commands), '/exit']);
        return console.log(`Unknown command ${name}.${suggestion ? ` Did you mean ${suggestion}?` : ''}\n${HELP}`);
      }
      try {
        const told = await commands[name](line.slice(name.length).trim(), signal);
        if (told !== undefined) console.log(told);
      } catch (error) {
        console.error(userErrorMessage(error));
      }
    },
    async send(text: string, signal: AbortSignal): Promise<void> {
      await answer(options => branches.conversation.send(joinPromptParts(attached, text), options), signal);
      if (last && last.ids.length > 0) attached = [];
      // A question without an answer is dropped; its files are not, since reading them again takes long.
      else if (attached.length > 0)
        console.error(`Your message was dropped. Still attached to the next one: ${attachedNames()}. /undo detaches.`);
    },
    close: () => branches.close(),
  };
}

/** The path after a command, without quotes, and with ~ as the home directory. */
function pathArgument(rest: string, usage: string): string {
  const path = rest.replace(/^(["'])(.*)\1$/, '$2').replace(/^~(?=$|[\\/])/, homedir());
  if (path === '') throw new InputError(`No file was given. Usage: ${usage}`);
  return path;
}

/** The message of a user error; other errors are thrown again. */
function userErrorMessage(error: unknown): string {
  if (!(error instanceof KvasirError)) throw error;
  return `kvasir: ${error.describe(flagName)}`;
}
