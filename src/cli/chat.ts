/** `kvasir chat`: turns in a terminal. The cache stays, so each turn reads only what is new. */
import { createInterface } from 'node:readline';
import type { Command } from 'commander';
import type { Conversation } from '../engine/conversation.ts';
import type { Model } from '../engine/model.ts';
import type { Result } from '../engine/stream.ts';
import { KvasirError } from '../errors.ts';
import { formatBytes, formatCount } from '../units.ts';
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
  statsLine,
} from './session.ts';

type Options = ModelOptions & SampleFlags;

const HELP = `/stats  speed and memory of the last answer
/reset  forget everything said so far
/exit   leave (or Ctrl-D, or Ctrl-C twice)
/help   this
Ctrl-C stops an answer.`;

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
  const talk = model.conversation({ system: options.system });
  const terminal = Boolean(process.stdin.isTTY && process.stdout.isTTY);
  const lines = createInterface({ input: process.stdin, output: terminal ? process.stdout : undefined, terminal });
  let answering: AbortController | undefined;
  let interrupts = 0;
  let last: Result | undefined;
  const onInterrupt = () => {
    interrupts++;
    if (interrupts > 1) lines.close();
    answering?.abort();
    if (!answering && interrupts === 1) prompt('\n(Ctrl-C again to leave)\n');
  };
  const prompt = (before = '') => {
    if (!terminal) return;
    process.stdout.write(before);
    lines.prompt();
  };
  // A terminal in raw mode hands Ctrl-C to readline; elsewhere it is a signal.
  lines.on('SIGINT', onInterrupt);
  process.on('SIGINT', onInterrupt);
  try {
    if (terminal) console.log(`${model.config.name}, ${model.plan.spec}, ${model.device.why}. /help shows commands.`);
    prompt();
    for await (const line of lines) {
      interrupts = 0;
      const text = line.trim();
      if (text === '/exit') break;
      if (text.startsWith('/')) console.log(command(text, talk, model, last));
      else if (text !== '') {
        answering = new AbortController();
        last = await answer(talk, text, options, answering.signal);
        answering = undefined;
      }
      prompt();
    }
  } finally {
    process.off('SIGINT', onInterrupt);
    lines.close();
    talk.dispose();
  }
}

/** Streams an answer; an error of the user's (a full context) ends the turn, not the chat. */
async function answer(talk: Conversation, text: string, options: Options, signal: AbortSignal) {
  const bar = prefillBar();
  const stream = talk.send(text, { ...sampleOptions(options), signal, onPrefill: bar.onPrefill });
  try {
    for await (const piece of stream) {
      bar.end();
      process.stdout.write(forTerminal(piece));
    }
    const result = await stream.result();
    process.stdout.write(result.finish === 'cancelled' ? ' (stopped)\n' : '\n');
    for (const notice of result.notices) console.error(notice);
    return result;
  } catch (error) {
    if (!(error instanceof KvasirError)) throw error;
    console.error(`kvasir: ${error.message} /reset starts anew.`);
    return undefined;
  } finally {
    bar.end();
  }
}

function command(text: string, talk: Conversation, model: Model, last: Result | undefined): string {
  if (text === '/help') return HELP;
  if (text === '/reset') {
    talk.reset();
    return 'Forgotten.';
  }
  if (text === '/stats') {
    const cache = `cache: ${formatCount(talk.length)} of ${formatCount(model.context)} tokens, ${formatBytes(talk.bytes)}`;
    return last ? `${cache}\n${statsLine(last, model)}` : cache;
  }
  return `There is no ${text.split(' ')[0]}.\n${HELP}`;
}
