/**
 * Answers in channels, the harmony format of gpt-oss: messages of a header and a body, such as
 * `<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`. The prompt has begun the first
 * header. Analysis is reasoning; a message to `functions.NAME` is a call; other messages are text.
 */
import type { AnswerParser, AnswerPart } from './answer-format.ts';

/** Templates of this format have it, and no others. */
const CHANNEL = '<|channel|>';
const MESSAGE = '<|message|>';
const BODY_ENDS = ['<|start|>', '<|end|>', '<|call|>', '<|return|>', CHANNEL];
export const CHANNEL_MARKERS = [...BODY_ENDS, MESSAGE, '<|constrain|>'];

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
  let index = -1;
  let part: AnswerPart = { text: '', reasoning: '', calls: [] };

  const openBody = (line: string) => {
    const [, channel] = /<\|channel\|>\s*(\w+)/.exec(line) ?? [];
    const [, name] = /\bto=functions\.([^\s<]+)/.exec(line) ?? [];
    header = undefined;
    target = name !== undefined && names.includes(name) ? 'arguments' : channel === 'analysis' ? 'reasoning' : 'text';
    isFirstMessage = false;
    if (target === 'arguments') part.calls.push({ index: ++index, name });
    else {
      if (hasMessage[target]) part[target] += '\n';
      hasMessage[target] = true;
    }
  };

  const write = (text: string) => {
    if (header === undefined) {
      const last = part.calls.at(-1);
      if (target !== 'arguments') part[target] += text;
      else if (last) last.arguments = (last.arguments ?? '') + text;
      else part.calls.push({ index, arguments: text });
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

  const take = (): AnswerPart => {
    const taken = part;
    part = { text: '', reasoning: '', calls: [] };
    return taken;
  };

  return {
    push(text) {
      for (const letter of text) read(letter);
      return take();
    },
    end() {
      write(held);
      held = '';
      if (isFirstMessage && header && !header.includes(CHANNEL)) writeHeader();
      return take();
    },
  };
}
