/**
 * The formats in which models write reasoning and tool calls, and a parser that takes answers apart as they stream. It
 * reads one character at a time, so how the text was divided makes no difference.
 */

import { type AnswerParser, createAnswerParts } from './answer-parts.ts';
import { createCallReader, detectCallFormat, isTextCallFormat, type TextCallFormat } from './call-formats.ts';
import { detectThinkTags, THINK_TAGS, type ThinkTags } from './thinking.ts';
import { createJsonScanner, createWrittenCalls, type Opening, type WrittenCall } from './written-calls.ts';

/**
 * `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, also Qwen's. `llama3`: the whole answer is
 * `{"name": ..., "parameters": {...}}`, several with semicolons between them. `channels`: messages (channels.ts). Others:
 * call-formats.ts.
 */
export type CallFormat = 'hermes' | 'llama3' | 'channels' | TextCallFormat;

/** How a model's answers are written. */
export interface AnswerFormat {
  readonly toolCalls: CallFormat;
  /** Whether the template knows the variable `tools`. */
  readonly takesTools: boolean;
  /** What reasoning is in, which answers may begin with; undefined: there is none. */
  readonly thinking?: ThinkTags;
  /** Whether answers are in channels (channels.ts). */
  readonly channels: boolean;
}

/** Recognizes the format by a template's source. */
export function detectAnswerFormat(template = ''): AnswerFormat {
  const isLlama = !template.includes('<tool_call>') && /python_tag|"parameters"/.test(template);
  return {
    toolCalls: detectCallFormat(template) ?? (isLlama ? 'llama3' : 'hermes'),
    takesTools: /\btools\b/.test(template),
    thinking: detectThinkTags(template),
    channels: template.includes('<|channel|>'),
  };
}

export interface ParserOptions {
  /** Look for tool calls in this format. Default: none. */
  toolCalls?: CallFormat;
  /** Names of the tools: what begins like a call of no tool is text. Default: any. */
  names?: readonly string[];
  /**
   * Look for calls that are written as text too: whether this one is accepted, after `before` others. Needs `names`.
   * Default: only calls in the format.
   */
  acceptCall?(call: WrittenCall, before: number): boolean;
  /** `open`: the prompt has opened the reasoning already. `optional`: the answer may. Default: none. */
  reasoning?: 'open' | 'optional';
  /** What reasoning is in. Default: `<think>`. */
  thinking?: ThinkTags;
  /** Of a format without a grammar: further calls are dropped. Default: no limit. */
  maxCalls?: number;
  /** The arguments of a call whose format has only texts for them. Default: texts. */
  typed?(name: string, values: ReadonlyMap<string, string>): Record<string, unknown>;
  /** What the answer begins with: of its text, or of its reasoning if that is open. It is not part of what is read. */
  begun?: string;
}

type Mode = 'start' | 'reasoning' | 'text' | 'call' | 'arguments' | 'closing' | 'written' | 'format' | 'after';

const CALL_HEAD = /^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*\{$/;
/** A call whose head is longer than this is text. */
const MAX_HEAD = 1024;

export function createAnswerParser(options: ParserOptions): AnswerParser {
  const { toolCalls, names, acceptCall, reasoning, thinking = THINK_TAGS[0], begun = '' } = options;
  const { maxCalls, typed = (_, values) => Object.fromEntries(values) } = options;
  const isLlama = toolCalls === 'llama3';
  const marker = toolCalls === 'hermes' ? '<tool_call>' : undefined;
  const written = names && createWrittenCalls(names);
  const format = names && isTextCallFormat(toolCalls) ? createCallReader(toolCalls, names) : undefined;
  let mode: Mode = reasoning === 'open' ? 'reasoning' : begun === '' && (reasoning || isLlama) ? 'start' : 'text';
  /** What may be part of a marker or a call, or is not complete. */
  let held = '';
  /** Leading white space of a part is dropped. */
  let isFirst = mode !== 'text' && begun === '';
  /** Of the text that was written. */
  let place = advance({ line: '', isCode: false }, mode === 'text' ? begun : '');
  /** Of a call's JSON; where it begins in `held`; and what is dropped after it. */
  let scanner = createJsonScanner();
  let json = 0;
  let closers: string[] = [];
  const parts = createAnswerParts();

  const write = (to: 'text' | 'reasoning', piece: string) => {
    const content = isFirst ? piece.trimStart() : piece;
    if (content === '') return;
    isFirst = false;
    parts.write(to, content);
    if (to === 'reasoning') return;
    place = advance(place, content);
    closers = [];
  };

  const enter = (next: Mode) => {
    mode = next;
    held = '';
    if (next === 'text' || next === 'reasoning') isFirst = true;
  };

  /** Reads what was held back again, in another mode. */
  const replayAs = (next: Mode) => {
    const text = held;
    enter(next);
    for (const letter of text) read(letter);
  };

  const start = (letter: string) => {
    held = (held + letter).trimStart();
    const openings = [...(reasoning ? [thinking.open] : []), ...(isLlama ? ['<|python_tag|>'] : [])];
    if (openings.includes(held)) enter(held === thinking.open ? 'reasoning' : 'call');
    else if (isLlama && held.startsWith('{')) mode = 'call';
    else if (!openings.some(opening => opening.startsWith(held))) replayAs('text');
  };

  const readReasoning = (letter: string) => {
    held += letter;
    const opening = hold('reasoning', text => (thinking.close.startsWith(text.trimStart()) ? MAYBE : NO));
    if (opening === MAYBE && held.trimStart() === thinking.close) enter('text');
  };

  const readText = (letter: string) => {
    held += letter;
    const opening = hold('text', openingAt);
    if (opening.state === 'marker') enter('call');
    if (opening.state === 'format') {
      mode = 'format';
      endFormat();
    }
    if (opening.state !== 'call') return;
    mode = 'written';
    [json, closers, scanner] = [opening.json, [...opening.closers, ...closers], createJsonScanner()];
    for (const one of held.slice(json)) scanner.read(one);
  };

  /** Writes what is held back up to the first place where something may begin, and returns what that is. */
  const hold = <T extends { state: string }>(
    to: 'text' | 'reasoning',
    openingOf: (text: string, at: number) => T,
  ): T => {
    // Endless white space is not held back.
    let at = held.length > MAX_HEAD && held.trim() === '' ? held.length : 0;
    let opening = openingOf(held.slice(at), at);
    const isNone = () => opening.state === 'no' || (opening.state === 'maybe' && held.length - at > MAX_HEAD);
    while (isNone()) opening = openingOf(held.slice(++at), at);
    write(to, held.slice(0, at));
    held = held.slice(at);
    return opening;
  };

  const openingAt = (text: string, at: number): Opening | { state: 'marker' | 'format' } => {
    const content = text.trimStart();
    if (text === '' || (content === '' && (acceptCall || format))) return MAYBE;
    const state = format?.opening(content) ?? 'no';
    if (state !== 'no') return state === 'call' ? { state: 'format' } : MAYBE;
    if (content === marker) return { state: 'marker' };
    if (marker?.startsWith(content)) return MAYBE;
    if (!written || !acceptCall) return NO;
    const before = held.slice(0, at + text.length - content.length);
    const { line, isCode } = advance(place, before);
    return line === '' && !isCode ? written.opening(text) : NO;
  };

  const readWritten = (letter: string) => {
    const found = scanner.read(letter);
    if (found !== 'wrong') held += letter;
    if (found !== 'more') endWritten();
    if (found === 'wrong') read(letter);
  };

  const endWritten = () => {
    const calls = written?.parse(held.slice(json).trim()) ?? [];
    const isAccepted = calls.length > 0 && calls.every((call, i) => acceptCall?.(call, parts.calls + i));
    if (!isAccepted) return notCall();
    for (const { name, arguments: args } of calls) parts.addCall(name, JSON.stringify(args));
    enter('after');
  };

  const readFormat = (letter: string) => {
    held += letter;
    endFormat();
  };

  /** Adds the calls that are held back, if they are complete. */
  const endFormat = () => {
    const calls = format?.parse(held.trimStart());
    if (!format || !calls) return;
    for (const { name, arguments: given } of maxCalls ? calls.slice(0, maxCalls - parts.calls) : calls)
      parts.addCall(name, JSON.stringify(given instanceof Map ? typed(name, given) : given));
    closers = [...format.closers];
    enter('after');
  };

  /** Drops what separates and ends calls that are written as text. */
  const readAfter = (letter: string) => {
    held = (held + letter).replace(/^[\s,;]+/, '');
    if (held === '') return;
    const closer = closers.find(one => one.startsWith(held));
    if (held === closer) {
      closers = closers.filter(one => one !== closer);
      held = '';
    } else if (!closer) {
      place = { ...place, line: '' };
      replayAs('text');
    }
  };

  const readCall = (letter: string) => {
    held += letter;
    const [, name] = CALL_HEAD.exec(held) ?? [];
    if (name !== undefined) {
      parts.addCall(JSON.parse(name));
      enter('arguments');
      scanner = createJsonScanner();
      readArguments('{');
      return;
    }
    const isOver = held.length > MAX_HEAD || (!isLlama && held.endsWith('</tool_call>'));
    if (isOver || written?.opening(held).state === 'no') notCall();
  };

  /** What looked like a call is text. */
  const notCall = () => {
    const text = (mode === 'call' && !isLlama ? '<tool_call>' : '') + held;
    mode = 'text';
    held = '';
    write('text', text);
  };

  const readArguments = (letter: string) => {
    parts.addArguments(letter);
    if (scanner.read(letter) === 'end') enter('closing');
  };

  /** Drops the rest of a call: a brace, and the marker or separator after it. */
  const close = (letter: string) => {
    held += letter;
    const rest = held.replace(/\s/g, '');
    const mayEnd = isLlama ? /^\}?;*$/.test(rest) : '}</tool_call>'.startsWith(rest);
    if (isLlama && /^\};*\{$/.test(rest)) {
      mode = 'call';
      held = '{';
    } else if (!isLlama && rest === '}</tool_call>') enter('text');
    else if (!mayEnd || held.length > MAX_HEAD) replayAs('text');
  };

  const readers: Record<Mode, (letter: string) => void> = {
    ...{ start, reasoning: readReasoning, text: readText, call: readCall, arguments: readArguments, closing: close },
    ...{ written: readWritten, format: readFormat, after: readAfter },
  };
  const read = (letter: string): void => readers[mode](letter);

  return parts.parser(read, () => {
    if (mode === 'written') endWritten();
    if (mode === 'call' || mode === 'format') notCall();
    else if (mode === 'text' || mode === 'start') write('text', held);
    else if (mode === 'reasoning') write('reasoning', held);
    held = '';
  });
}

const NO = { state: 'no' } as const;
const MAYBE = { state: 'maybe' } as const;

/** A place in a text: the first three letters of its line, and whether it is in a code block. */
interface Place {
  readonly line: string;
  readonly isCode: boolean;
}

function advance({ line, isCode }: Place, text: string): Place {
  for (const letter of text) {
    if (letter === '\n') line = '';
    else if (line.length < 3 && (line !== '' || /\S/.test(letter))) {
      line += letter;
      if (line === '```') isCode = !isCode;
    }
  }
  return { line, isCode };
}
