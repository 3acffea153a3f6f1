/** What a parser finds in an answer, taken in parts as it streams. */

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

const emptyPart = (): AnswerPart => ({ text: '', reasoning: '', calls: [] });

/** Collects what is found until the next part is taken. */
export function createAnswerParts() {
  let part = emptyPart();
  let calls = 0;
  const take = () => {
    const taken = part;
    part = emptyPart();
    return taken;
  };
  return {
    /** Calls so far. */
    get calls() {
      return calls;
    },
    write(to: 'text' | 'reasoning', text: string): void {
      part[to] += text;
    },
    addCall(name: string, args?: string): void {
      part.calls.push({ index: calls++, name, ...(args !== undefined && { arguments: args }) });
    },
    /** Of the last call. */
    addArguments(text: string): void {
      const last = part.calls.at(-1);
      if (last) last.arguments = (last.arguments ?? '') + text;
      else part.calls.push({ index: calls - 1, arguments: text });
    },
    /** A parser that reads one character at a time, and at the end writes what it held back. */
    parser(read: (letter: string) => void, writeHeld: () => void): AnswerParser {
      return {
        push(text) {
          for (const letter of text) read(letter);
          return take();
        },
        end() {
          writeHeld();
          return take();
        },
      };
    },
  };
}
