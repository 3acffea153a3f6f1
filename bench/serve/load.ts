/** Requests and their times: chats over shared documents, or a recorded trace. The same seed gives the same load. */
import { createRandom, type Random } from '../../src/engine/random.ts';
import { InputError } from '../../src/util/errors.ts';

/** Characters per token of English text, roughly. */
const CHARACTERS = 4;

export interface Turn {
  /** Seconds from the start. A turn also waits for the answer to the turn before it. */
  at: number;
  question: string;
  maxTokens: number;
}

/** A conversation: every turn sends the messages and answers before it. */
export interface Chat {
  system?: string;
  turns: Turn[];
}

export interface ChatLoad {
  /** Requests per second. */
  rate: number;
  chats: number;
  /** Turns per chat. */
  turns: number;
  /** Documents that chats are about, in turn. */
  documents: number;
  /** Tokens of a document, and of an answer. */
  documentTokens: number;
  answerTokens: number;
  seed: number;
}

/** Increasing times of a Poisson process: requests arrive whether or not others were answered. */
export function poissonArrivals(count: number, rate: number, random: Random): number[] {
  let time = 0;
  return Array.from({ length: count }, () => {
    time -= Math.log(1 - random.next()) / rate;
    return time;
  });
}

export interface ClientLoad extends Pick<ChatLoad, 'turns' | 'answerTokens' | 'seed'> {
  clients: number;
  /** Tokens of a system prompt that all have in common; 0: none. */
  systemTokens: number;
}

/** Clients that each have a chat of their own, and ask as soon as they have their answer. */
export function clientLoad({ clients, systemTokens, turns, answerTokens, seed }: ClientLoad, text: string): Chat[] {
  const random = createRandom(seed);
  const system = systemTokens > 0 ? excerpt(text, systemTokens, random) : undefined;
  const turn = (): Turn => ({
    at: 0,
    question: `Continue this text: "${excerpt(text, 16, random)}"`,
    maxTokens: answerTokens,
  });
  return Array.from({ length: clients }, () => ({ system, turns: Array.from({ length: turns }, turn) }));
}

/** Every arrival is the next turn of a chat, drawn from those that have one. */
export function chatLoad({ rate, chats, turns, documents, ...load }: ChatLoad, text: string): Chat[] {
  const random = createRandom(load.seed);
  const systems = Array.from(
    { length: documents },
    () => `Answer from this text:\n${excerpt(text, load.documentTokens, random)}`,
  );
  const all = Array.from({ length: chats }, (_, i): Chat => ({ system: systems[i % documents], turns: [] }));
  const open = [...all];
  for (const at of poissonArrivals(chats * turns, rate, random)) {
    const i = Math.floor(random.next() * open.length);
    const chat = open[i];
    const question = `What does the text say about this: "${excerpt(text, 16, random)}"?`;
    chat.turns.push({ at, question, maxTokens: load.answerTokens });
    if (chat.turns.length === turns) open.splice(i, 1);
  }
  return all;
}

/** A line of a Mooncake trace. Equal ids are equal blocks of a prompt. */
interface TraceRequest {
  /** Milliseconds. */
  timestamp: number;
  input_length: number;
  output_length: number;
  hash_ids: number[];
}

const BLOCK = 512;

export interface TraceLoad {
  rate: number;
  /** The first requests of the trace. */
  count: number;
  /** Lengths are divided by this. */
  scale: number;
  seed: number;
}

/** The order, gaps, lengths and shared prefixes of a trace, at another rate and with shorter texts. */
export function traceLoad(trace: string, { rate, count, scale, seed }: TraceLoad, text: string): Chat[] {
  const requests = trace.trim().split('\n', count).map(parseRequest);
  const seconds = (requests[requests.length - 1].timestamp - requests[0].timestamp) / 1000;
  // A trace whose requests all arrive together has no rate: they arrive together here too.
  const stretch = seconds > 0 ? requests.length / seconds / rate : 0;
  const tokens = (length: number) => Math.max(1, Math.round(length / scale));
  return requests.map(({ timestamp, input_length, output_length, hash_ids }) => {
    const blocks = hash_ids.map((id, i) => {
      const length = Math.min(BLOCK, input_length - i * BLOCK);
      return excerpt(text, tokens(BLOCK), createRandom(seed * 2 ** 32 + id)).slice(0, tokens(length) * CHARACTERS);
    });
    const at = ((timestamp - requests[0].timestamp) / 1000) * stretch;
    return { turns: [{ at, question: blocks.join(''), maxTokens: tokens(output_length) }] };
  });
}

function parseRequest(line: string, index: number): TraceRequest {
  const request = JSON.parse(line);
  if (!Number.isFinite(request.timestamp) || !Array.isArray(request.hash_ids))
    throw new InputError(`Line ${index + 1} of the trace has no timestamp and hash_ids: ${line.slice(0, 100)}`);
  return request;
}

/** A random part of a text, of about so many tokens. */
function excerpt(text: string, tokens: number, random: Random): string {
  const length = tokens * CHARACTERS;
  if (text.length < length)
    throw new InputError(`The text has ${text.length} characters, but ${length} are needed. Use a longer --text.`);
  const start = Math.floor(random.next() * (text.length - length));
  return text.slice(start, start + length);
}
