/** Request traces in the format of Mooncake's releases: one JSON object per line, with the `hash_ids` of a prompt's blocks. */
import { FormatError } from '../../src/util/errors.ts';
import type { TraceRequest } from './replay.ts';

export function readTrace(text: string): TraceRequest[] {
  return text.split('\n').flatMap((line, i) => (line.trim() === '' ? [] : [readRequest(line, i + 1)]));
}

function readRequest(line: string, number: number): TraceRequest {
  const blocks = parseBlocks(line);
  if (!Array.isArray(blocks) || !blocks.every(block => Number.isSafeInteger(block)))
    throw new FormatError(
      `Line ${number} of the trace is not a request. Expected one JSON object per line with "hash_ids": a list of ` +
        'integers, one per block of the prompt.',
    );
  return { blocks };
}

function parseBlocks(line: string): unknown {
  try {
    return (JSON.parse(line) as { hash_ids?: unknown } | null)?.hash_ids;
  } catch {
    return undefined;
  }
}
