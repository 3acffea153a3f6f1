import { describe, expect, it } from 'vitest';
import type { Sequence } from '../cache/sequence.ts';
import { createSlot } from './slot.ts';

/** A sequence that only counts tokens. It can be cropped to any length, or to a multiple of `pageTokens`. */
function createFake(pageTokens = 1) {
  const log: string[] = [];
  let length = 0;
  const open = () => {
    log.push('open');
    length = 0;
    const sequence: Pick<Sequence, 'length' | 'bytes' | 'leafBytes' | 'crop' | 'dispose'> = {
      get length() {
        return length;
      },
      bytes: 100,
      leafBytes: 60,
      crop(to: number) {
        log.push(`crop ${to}`);
        length = Math.min(length, Math.floor(to / pageTokens) * pageTokens);
        return length;
      },
      dispose: () => log.push('dispose'),
    };
    return sequence as Sequence;
  };
  const slot = createSlot(open, () => log.push('close'));
  /** What a generation does: reuse, prefill the rest (or only `prefilled` tokens), and generate tokens. */
  const generate = (prompt: number[], generated: number[] = [], prefilled = prompt.length) => {
    const reused = slot.reusePrefix(prompt);
    // Opens the sequence.
    expect(slot.sequence.length).toBe(reused);
    length = Math.max(length, prefilled);
    for (const id of generated) {
      slot.push(id);
      // The last generated token has not been run.
      length = prompt.length + generated.indexOf(id);
    }
    return reused;
  };
  return { slot, log, generate };
}

describe('a slot', () => {
  it('opens its sequence on first use, once', () => {
    const { slot, log } = createFake();
    expect([slot.length, slot.bytes, slot.pageBytes, log]).toEqual([0, 0, 0, []]);
    expect(slot.reusePrefix([1, 2])).toBe(0);
    expect(log).toEqual([]);
    expect(slot.sequence).toBe(slot.sequence);
    expect([slot.length, slot.bytes, slot.pageBytes, log]).toEqual([0, 100, 60, ['open']]);
  });

  it('reuses the longest shared prefix of the prompt and the generated tokens', () => {
    const { generate, log } = createFake();
    expect(generate([1, 2, 3], [7, 8])).toBe(0);
    // 1 2 3 7 have run; 8 was sampled, not run.
    expect(generate([1, 2, 3, 7, 8, 9])).toBe(4);
    expect(generate([1, 2, 5, 7, 8, 9])).toBe(2);
    expect(generate([6, 2, 5])).toBe(0);
    expect(log.filter(entry => entry === 'open')).toHaveLength(1);
  });

  it('never reuses the last token of a prompt: its logits are needed', () => {
    const { generate } = createFake();
    generate([1, 2, 3], [4, 5]);
    expect(generate([1, 2, 3])).toBe(2);
    expect(generate([1])).toBe(0);
  });

  it('after a cancelled prefill, reuses only what was run', () => {
    const { generate } = createFake();
    generate([1, 2, 3, 4, 5, 6], [], 2);
    expect(generate([1, 2, 3, 4, 5, 6])).toBe(2);
  });

  it('reports what the sequence could keep, which may be less than what is shared', () => {
    const { generate, log } = createFake(4);
    generate([1, 2, 3, 4, 5, 6, 7]);
    expect(generate([1, 2, 3, 4, 5, 6, 9, 9])).toBe(4);
    expect(log).toContain('crop 6');
  });

  it('reset frees the sequence and forgets its tokens; the next use opens another one', () => {
    const { slot, generate, log } = createFake();
    generate([1, 2, 3]);
    slot.reset();
    expect(log.slice(-2)).toEqual(['dispose', 'close']);
    expect([slot.length, slot.bytes]).toEqual([0, 0]);
    expect(generate([1, 2, 3])).toBe(0);
    expect(log.filter(entry => entry === 'open')).toHaveLength(2);
  });
});
