/** `kvasir chat`: turns in a terminal. The cache stays, so each turn reads only what is new. */
import { homedir } from 'node:os';
import type { Command } from 'commander';
import type { Model } from '../engine/model.ts';
import type { Result } from '../engine/stream.ts';
import { KvasirError } from '../errors.ts';
import { nearest } from '../nearest.ts';
import { formatBytes, formatCount } from '../units.ts';
import { openChatInput } from './chat-input.ts';
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
import { type Document, joinPrompt, readPromptFile } from './text.ts';
import { inOptions } from './words.ts';

type Options = ModelOptions & SampleFlags;

const HELP = `/stats      speed and memory of the last answer
/file PATH  add a file to your next message
/reset      forget everything said so far
/exit       leave (or Ctrl-D, or Ctrl-C twice)
/help       this
""" begins a message of several lines, and ends it. A paste is one message.
Ctrl-C stops an answer. What you type during one waits for its end.`;

export function addChat(program: Command): void {
  const command = program
    .command('chat')
    .description('talk with a model; the cache is kept between turns')
    .argument('<model>', 'a .gguf file, or org/repo:Q4_K_M after `kvasir pull`');
  addSampleOptions(addModelOptions(command)).action(async (name: string, options: Options) => {
    let model: Model | undefined;
    await interruptible(async signal => {
      model = await loadForUser(name, options, signal);
    });
    if (!model) return;
    await using loaded = model;
    await chat(loaded, options);
  });
}

async function chat(model: Model, options: Options): Promise<void> {
  let answering: AbortController | undefined;
  const input = openChatInput(() => answering?.abort());
  const talk = createTalk(model, options);
  try {
    if (input.terminal)
      console.log(`${model.config.name}, ${model.plan.spec}, ${model.device.why}. /help shows commands.`);
    for (let message = await input.next(); message; message = await input.next()) {
      const text = message.text.trim();
      if (text === '/exit') break;
      if (text === '') continue;
      if (text.startsWith('/') && !message.literal)
        await talk.command(text).then(console.log, error => console.error(explained(error)));
      else {
        answering = new AbortController();
        await talk.answer(text, answering.signal);
        answering = undefined;
      }
    }
  } finally {
    input.close();
    await talk.dispose();
  }
}

/** A conversation as the user has it: what was attached, which turn it is, how the last one went. */
function createTalk(model: Model, options: Options) {
  const conversation = model.conversation({ system: options.system });
  let attached: Document[] = [];
  let last: Result | undefined;
  let turn = 0;

  /** A seed for each turn: with one for all, the same question would always get the same answer. */
  const sampling = () => {
    const { seed, ...rest } = sampleOptions(options);
    return { ...rest, seed: seed === undefined ? undefined : seed + turn };
  };
  const commands: Record<string, (rest: string) => string | Promise<string>> = {
    '/help': () => HELP,
    async '/reset'() {
      await conversation.reset();
      attached = [];
      turn = 0;
      return 'Forgotten.';
    },
    async '/file'(rest) {
      const path = rest.replace(/^(["'])(.*)\1$/, '$2').replace(/^~(?=$|[\\/])/, homedir());
      if (path === '') return 'Say which file: /file PATH';
      const text = await readPromptFile(path, 'the path after /file');
      attached.push({ path, text });
      const tokens = model.tokenizer.encode(text).length;
      return `${path}: ${formatCount(tokens)} tokens, of ${formatCount(model.context)} that fit. It goes before your next message.`;
    },
    async '/stats'() {
      const { length, bytes } = conversation;
      const cache = `cache: ${formatCount(length)} of ${formatCount(model.context)} tokens, ${formatBytes(bytes)}`;
      return last ? `${cache}\n${await statsOf(last, model, conversation)}` : cache;
    },
  };
  return {
    async command(line: string): Promise<string> {
      const [name] = line.split(/\s/, 1);
      if (Object.hasOwn(commands, name)) return commands[name](line.slice(name.length).trim());
      const meant = nearest(name, [...Object.keys(commands), '/exit']);
      return `There is no ${name}.${meant ? ` Did you mean ${meant}?` : ''}\n${HELP}`;
    },
    /** Streams an answer; an error of the user's (a full context) ends the turn, not the chat. */
    async answer(text: string, signal: AbortSignal): Promise<void> {
      const bar = prefillBar();
      const message = joinPrompt(attached, text);
      const stream = conversation.send(message, { ...sampling(), signal, onPrefill: bar.onPrefill });
      last = undefined;
      try {
        for await (const piece of stream) {
          bar.end();
          process.stdout.write(forTerminal(piece));
        }
        bar.end();
        last = await stream.result();
        // A question that was stopped before its answer began is not part of the chat: its files wait for the next.
        if (last.ids.length > 0) attached = [];
        turn++;
        process.stdout.write(last.finish === 'cancelled' ? ' (stopped)\n' : '\n');
        for (const notice of last.notices) console.error(inOptions(notice));
      } catch (error) {
        console.error(`${explained(error)} /reset starts anew.`);
      } finally {
        bar.end();
      }
    },
    dispose: () => conversation.dispose(),
  };
}

/** What an error of the user's says; one of ours goes on. */
function explained(error: unknown): string {
  if (!(error instanceof KvasirError)) throw error;
  return `kvasir: ${inOptions(error.message)}`;
}
