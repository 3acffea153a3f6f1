/** Which slot of the Worker a conversation gets. */
import { expect, it, vi } from 'vitest';
import type { RemoteService } from '../../src/worker/index.ts';

// What the page can store is found when the file is loaded.
vi.stubGlobal('navigator', {});
const { createSessions, MAX_OPEN } = await import('../../web/src/engine/sessions.ts');
vi.unstubAllGlobals();

it('conversations that are asked at the same time get slots of their own', async () => {
  const busy = new Set<number>();
  const service = {
    slots: async () => [...busy].map(slot => ({ slot, busy: true })),
    // Slower than the other calls.
    eraseSlot: () => new Promise(resolve => setTimeout(resolve, 5)),
    restoreSlot: () => Promise.reject(new Error('nothing was saved')),
  } as unknown as RemoteService;
  const { slotOf } = createSessions(service);
  const first = await Promise.all(['a', 'b', 'c', 'd'].map(slotOf));
  expect([...first].sort()).toEqual(Array.from({ length: MAX_OPEN }, (_, slot) => slot));
  busy.add(first[0]).add(first[1]);
  // The two that are idle give theirs up.
  const next = await Promise.all(['e', 'f'].map(slotOf));
  expect([...next].sort()).toEqual([first[2], first[3]].sort());
  expect(await slotOf('a')).toBe(first[0]);
});
