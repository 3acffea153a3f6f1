/**
 * Answers in channels, the harmony format of gpt-oss: messages of a header and a body, such as
 * `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. The prompt has begun the first
 * header. Analysis is reasoning; a message to `functions.NAME` is a call; other messages are text.
 */
import { type AnswerParser, createAnswerParts } from './answer-parts.ts';

/** Templates of this format have it, and no others. */
export const CHANNEL = '<|channel|>';
export const MESSAGE = '<|message|>';
export const START = '<|start|>';
export const END = '<|end|>';
export const CONSTRAIN = '<|constrain|>';
const BODY_ENDS = [START, END, '<|call|>', '<|return|>', CHANNEL];
export const CHANNEL_MARKERS = [...BODY_ENDS, MESSAGE, CONSTRAIN];

/** A longer header is text. */
const MAX_HEADER = 256;

/** `names`: of the tools; a message to any other function is text. */
export function createChannelParser(names: readonly string[] = []): AnswerParser {
  /** What may become a marker. */
  let held = '';
  /** Undefined in a body. */
  let header: string | undefined = '';
  let target: 'text' | 'reasoning' | 'arguments' = 'text';
  let isFirstMessage = true;
  /** Whether there has been text, or reasoning. */
  const hasMessage = { text: false, reasoning: false };
  const parts = createAnswerParts();

  const openBody = (line: string) => {
    const [, channel] = /<\|channel\|>\s*(\w+)/.exec(line) ?? [];
    const [, name] = /\bto=functions\.([^\s<]+)/.exec(line) ?? [];
    header = undefined;
    target = name !== undefined && names.includes(name) ? 'arguments' : channel === 'analysis' ? 'reasoning' : 'text';
    isFirstMessage = false;
    if (target === 'arguments') parts.addCall(name);
    else {
      if (hasMessage[target]) parts.write(target, '\n');
      hasMessage[target] = true;
    }
  };

  const write = (text: string) => {
    if (header === undefined) {
      if (target === 'arguments') parts.addArguments(text);
      else parts.write(target, text);
      return;
    }
    header += text;
    if (header.length > MAX_HEADER) writeHeader();
  };

  /** The answer is not in this format. */
  const writeHeader = () => {
    const text = header ?? '';
    openBody('');
    write(text);
  };

  const readMarker = (marker: string) => {
    if (header !== undefined && marker === MESSAGE) openBody(header);
    else if (BODY_ENDS.includes(marker) && marker !== CHANNEL) header = '';
    else if (header !== undefined || marker === CHANNEL) header = (header ?? '') + marker;
  };

  const read = (letter: string) => {
    held += letter;
    while (held !== '' && !CHANNEL_MARKERS.some(marker => marker.startsWith(held))) {
      write(held[0]);
      held = held.slice(1);
    }
    if (!CHANNEL_MARKERS.includes(held)) return;
    readMarker(held);
    held = '';
  };

  return parts.parser(read, () => {
    write(held);
    held = '';
    if (isFirstMessage && header && !header.includes(CHANNEL)) writeHeader();
  });
}
