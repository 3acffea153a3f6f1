/** The frame of a stream, which chat completions and completions share: a chunk per part of a choice, usage, the end. */
import { formatEvent } from './sse.ts';

interface ChunkRequest {
  stream_options?: { include_usage?: boolean | null } | null;
}

export interface Chunks {
  /** A part of choice `index`: `content` has its delta or text. */
  part(index: number, content: object, logprobs?: object | null): string;
  /** The last part of a choice. */
  finish(index: number, content: object, reason: string): string;
  /** How much of the prompt is read. */
  progress(progress: object): string;
  /** The usage, if it was asked for, and the end of the stream. */
  end(usage: object): string;
}

/** `head`: the fields of every chunk. */
export function createChunks(head: object, { stream_options: options }: ChunkRequest): Chunks {
  const includeUsage = options?.include_usage === true;
  const chunk = (choices: object[], usage: object | null) =>
    formatEvent({ ...head, choices, ...(includeUsage && { usage }) });
  const choice = (index: number, content: object, logprobs: object | null, reason: string | null) =>
    chunk([{ index, ...content, logprobs, finish_reason: reason }], null);
  return {
    part: (index, content, logprobs = null) => choice(index, content, logprobs, null),
    finish: (index, content, reason) => choice(index, content, null, reason),
    progress: progress => formatEvent({ ...head, choices: [], prompt_progress: progress }),
    end: usage => (includeUsage ? chunk([], usage) : '') + formatEvent('[DONE]'),
  };
}
