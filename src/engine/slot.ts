/** A sequence and the tokens it holds: the cache of a conversation, of which the next prompt reuses all it can. */
import type { Sequence } from '../cache/sequence.ts';

export interface Slot {
  /** Opened when it is first asked for. */
  readonly sequence: Sequence;
  readonly length: number;
  readonly bytes: number;
  /** Bytes of its sealed pages alone. */
  readonly pageBytes: number;
  /** Makes the cache hold the longest prefix of a prompt that it can, the last token left out, and gives its length. */
  reusePrefix(prompt: readonly number[]): number;
  /** A token that comes next. */
  push(id: number): void;
  /** Forgets everything, and gives the memory back. Nothing may be running on it. */
  reset(): void;
}

export function createSlot(open: () => Sequence, onClose?: () => void): Slot {
  let sequence: Sequence | undefined;
  let ids: number[] = [];
  return {
    get sequence() {
      sequence ??= open();
      return sequence;
    },
    get length() {
      return sequence?.length ?? 0;
    },
    get bytes() {
      return sequence?.bytes ?? 0;
    },
    get pageBytes() {
      return sequence?.pageBytes ?? 0;
    },
    reusePrefix(prompt) {
      // A prompt whose prefill was stopped is in the cache only as far as it came.
      const held = Math.min(sequence?.length ?? 0, ids.length, prompt.length - 1);
      let shared = 0;
      while (shared < held && ids[shared] === prompt[shared]) shared++;
      ids = [...prompt];
      return sequence?.crop(shared) ?? 0;
    },
    push(id) {
      ids.push(id);
    },
    reset() {
      sequence?.dispose();
      sequence = undefined;
      ids = [];
      onClose?.();
    },
  };
}
