/**
 * The formats in which models write reasoning and tool calls, and a parser that takes answers apart as they stream. It
 * reads one character at a time, so how the text was divided makes no difference.
 */

/**
 * `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, also Qwen's. `llama3`: the whole answer is
 * `{"name": ..., "parameters": {...}}`, several with semicolons between them.
 */
export type CallFormat = 'hermes' | 'llama3';

/** How a model's answers are written. */
export interface AnswerFormat {
  readonly toolCalls: CallFormat;
  /** Whether the template knows the variable `tools`. */
  readonly takesTools: boolean;
  /** Whether answers may begin with `<think>...</think>`. */
  readonly thinks: boolean;
}

/** Recognizes the format by a template's source. */
export function detectAnswerFormat(template = ''): AnswerFormat {
  const isLlama = !template.includes('<tool_call>') && /python_tag|"parameters"/.test(template);
  return {
    toolCalls: isLlama ? 'llama3' : 'hermes',
    takesTools: /\btools\b/.test(template),
    thinks: template.includes('</think>'),
  };
}

/** A part of a tool call: its name once, then its arguments' JSON text in pieces. */
export interface CallPart {
  index: number;
  name?: string;
  arguments?: string;
}

export interface AnswerPart {
  text: string;
  reasoning: string;
  calls: CallPart[];
}

export interface AnswerParser {
  /** Adds text and returns what is certain by now. */
  push(text: string): AnswerPart;
  /** Ends the answer: returns what was held back. */
  end(): AnswerPart;
}

export interface ParserOptions {
  /** Look for tool calls in this format. Default: none. */
  toolCalls?: CallFormat;
  /** `open`: the prompt has opened the reasoning already. `optional`: the answer may. Default: none. */
  reasoning?: 'open' | 'optional';
}

type Mode = 'start' | 'reasoning' | 'text' | 'call' | 'arguments' | 'closing';

const CALL_HEAD = /^\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*\{$/;
/** A call whose head is longer than this is text. */
const MAX_HEAD = 1024;

export function createAnswerParser({ toolCalls, reasoning }: ParserOptions): AnswerParser {
  const isLlama = toolCalls === 'llama3';
  let mode: Mode = reasoning || isLlama ? (reasoning === 'open' ? 'reasoning' : 'start') : 'text';
  /** What may be part of a marker, or is not complete. */
  let held = '';
  /** Leading white space of a part is dropped. */
  let isFirst = mode !== 'text';
  /** Of the arguments' JSON. */
  let [depth, inString, escaped] = [0, false, false];
  let index = -1;
  let part: AnswerPart = { text: '', reasoning: '', calls: [] };

  const write = (to: 'text' | 'reasoning', piece: string) => {
    const written = isFirst ? piece.trimStart() : piece;
    if (written !== '') isFirst = false;
    part[to] += written;
  };

  const enter = (next: Mode) => {
    mode = next;
    held = '';
    if (next === 'text' || next === 'reasoning') isFirst = true;
  };

  const writeArguments = (piece: string) => {
    const last = part.calls.at(-1);
    if (last?.index === index) last.arguments = (last.arguments ?? '') + piece;
    else part.calls.push({ index, arguments: piece });
  };

  /** Holds back white space and the beginning of a marker; writes everything else. Returns whether the marker is complete. */
  const search = (letter: string, marker: string | undefined, to: 'text' | 'reasoning'): boolean => {
    held += letter;
    if (marker === undefined) {
      write(to, held);
      held = '';
      return false;
    }
    let keep = 0;
    while (!marker.startsWith(held.slice(keep).trimStart())) keep++;
    write(to, held.slice(0, keep));
    held = held.slice(keep);
    return held.trimStart() === marker;
  };

  const start = (letter: string) => {
    held += letter;
    const content = held.trimStart();
    const openings = [...(reasoning ? ['<think>'] : []), ...(isLlama ? ['<|python_tag|>'] : [])];
    if (openings.includes(content)) enter(content === '<think>' ? 'reasoning' : 'call');
    else if (isLlama && content.startsWith('{')) {
      mode = 'call';
      held = content;
    } else if (!openings.some(opening => opening.startsWith(content))) replayAs('text');
  };

  /** Reads what was held back again, in another mode. */
  const replayAs = (next: Mode) => {
    const text = held;
    enter(next);
    for (const letter of text) read(letter);
  };

  const readCall = (letter: string) => {
    held += letter;
    const [, name] = CALL_HEAD.exec(held) ?? [];
    if (name !== undefined) {
      part.calls.push({ index: ++index, name: JSON.parse(name) });
      enter('arguments');
      [depth, inString, escaped] = [1, false, false];
      writeArguments('{');
    } else if (held.length > MAX_HEAD || (!isLlama && held.endsWith('</tool_call>'))) notCall();
  };

  /** What looked like a call is text. */
  const notCall = () => {
    const text = (isLlama ? '' : '<tool_call>') + held;
    mode = 'text';
    held = '';
    write('text', text);
  };

  const readArguments = (letter: string) => {
    writeArguments(letter);
    if (escaped) escaped = false;
    else if (inString) {
      if (letter === '\\') escaped = true;
      else if (letter === '"') inString = false;
    } else if (letter === '"') inString = true;
    else if (letter === '{' || letter === '[') depth++;
    else if ((letter === '}' || letter === ']') && --depth === 0) enter('closing');
  };

  /** Drops the rest of a call: a brace, and the marker or separator after it. */
  const close = (letter: string) => {
    held += letter;
    const rest = held.replace(/\s/g, '');
    if (isLlama && /^\};*\{$/.test(rest)) {
      mode = 'call';
      held = '{';
    } else if (!isLlama && rest === '}</tool_call>') enter('text');
    else if (!(isLlama ? /^\}?;*$/.test(rest) : '}</tool_call>'.startsWith(rest))) replayAs('text');
  };

  const read = (letter: string): void => {
    if (mode === 'start') start(letter);
    else if (mode === 'reasoning') {
      if (search(letter, '</think>', 'reasoning')) enter('text');
    } else if (mode === 'text') {
      if (search(letter, toolCalls === 'hermes' ? '<tool_call>' : undefined, 'text')) enter('call');
    } else if (mode === 'call') readCall(letter);
    else if (mode === 'arguments') readArguments(letter);
    else close(letter);
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
      if (mode === 'call') notCall();
      else if (mode === 'text' || mode === 'start') write('text', held);
      else if (mode === 'reasoning') write('reasoning', held);
      held = '';
      return take();
    },
  };
}
