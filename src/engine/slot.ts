/** The cache of a conversation: a sequence and its token ids, so that the next prompt can reuse a shared prefix. */
import type { Sequence } from '../cache/sequence.ts';

export interface Slot {
  /** Opened on first access. */
  readonly sequence: Sequence;
  readonly length: number;
  readonly bytes: number;
  /** Bytes of the sealed pages. */
  readonly pageBytes: number;
  /**
   * Crops the cache to the longest prefix that it shares with the prompt and returns its length. The prompt's last token is
   * never reused: its logits are needed.
   */
  reusePrefix(prompt: readonly number[]): number;
  /** Records the id of a generated token. */
  push(id: number): void;
  /** True the first time, until the cache is emptied: for a warning that is given once per conversation. */
  warnOnce(): boolean;
  /** Empties and frees the cache. No pass may be running on it. */
  reset(): void;
}

export function createSlot(open: () => Sequence, onClose?: () => void): Slot {
  let sequence: Sequence | undefined;
  let ids: number[] = [];
  let warned = false;
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
      return sequence?.leafBytes ?? 0;
    },
    reusePrefix(prompt) {
      // After a cancelled prefill the cache holds only part of the ids.
      const held = Math.min(sequence?.length ?? 0, ids.length, prompt.length - 1);
      let shared = 0;
      while (shared < held && ids[shared] === prompt[shared]) shared++;
      ids = [...prompt];
      return sequence?.crop(shared) ?? 0;
    },
    push(id) {
      ids.push(id);
    },
    warnOnce() {
      const first = !warned;
      warned = true;
      return first;
    },
    reset() {
      warned = false;
      sequence?.dispose();
      sequence = undefined;
      ids = [];
      onClose?.();
    },
  };
}
