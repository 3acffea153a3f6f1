import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  addDrafts,
  admissionOrder,
  type Candidate,
  chooseRows,
  chooseVictim,
  notePass,
  prefetchWait,
  promptRowsPerPass,
  shouldRunAhead,
} from './schedule.ts';

const request = (arrival: number, promptRows = 0, options: Partial<Candidate> = {}): Candidate => ({
  ...{ arrival, promptRows, tenant: '', ready: true, lastTurn: -1 },
  ...options,
});
const rowsOf = (pieces: { request: Candidate; rows: number }[]) =>
  pieces.map(({ request, rows }) => [request.arrival, rows]);

describe('the next pass is recorded while one runs', () => {
  const ahead = (onDevice: number, onHost: number, passMs: number) => shouldRunAhead({ onDevice, onHost }, passMs, 3);

  it('if the device samples all tokens; a chunk from the middle of a prompt has none', () => {
    expect([ahead(0, 0, 60), ahead(1, 0, 60)]).toEqual([true, true]);
  });

  it('without rows that the host samples, if that gives more tokens per second in all', () => {
    // Recording, 3 ms, is half of a pass, or little of it.
    expect([ahead(1, 1, 6), ahead(8, 8, 6), ahead(1, 4, 6)]).toEqual([true, true, false]);
    expect([ahead(1, 1, 60), ahead(8, 1, 60), ahead(15, 1, 60)]).toEqual([false, false, true]);
  });

  it('never if the host samples all of them', () => {
    expect([ahead(0, 1, 1), ahead(0, 8, 1)]).toEqual([false, false]);
  });
});

describe('the rows of a pass', () => {
  it('are one per decoding request, then prompts', () => {
    expect(rowsOf(chooseRows([request(0, 100), request(1), request(2)], 64, 40))).toEqual([
      [1, 1],
      [2, 1],
      [0, 40],
    ]);
  });

  it('are shared by prompts: a short one does not wait for a long one', () => {
    expect(rowsOf(chooseRows([request(0, 100_000), request(1, 12)], 256, 64))).toEqual([
      [0, 52],
      [1, 12],
    ]);
  });

  it('leave out requests that wait for their next token or for their reader', () => {
    expect(chooseRows([request(0, 0, { ready: false }), request(1, 50, { ready: false })], 64, 64)).toEqual([]);
  });

  it('go round when there are more decoding requests than rows', () => {
    const requests = Array.from({ length: 10 }, (_, i) => ({ ...request(i), turns: 0 }));
    let turn = 0;
    for (let pass = 0; pass < 25; pass++)
      for (const { request: one } of chooseRows(requests, 4, 8))
        Object.assign(one, { lastTurn: turn++, turns: one.turns + 1 });
    expect(requests.map(one => one.turns)).toEqual(Array(10).fill(10));
  });

  it('go round when there are more prompts than shares', () => {
    const requests = Array.from({ length: 6 }, (_, i) => ({ ...request(i, 1000), turns: 0 }));
    let turn = 0;
    for (let pass = 0; pass < 12; pass++)
      for (const { request: one } of chooseRows(requests, 64, 3))
        Object.assign(one, { lastTurn: turn++, turns: one.turns + 1 });
    expect(requests.map(one => one.turns)).toEqual(Array(6).fill(2));
  });

  it('are not all taken by decoding requests while a prompt waits', () => {
    const chats = Array.from({ length: 40 }, (_, i) => request(i));
    expect(rowsOf(chooseRows([...chats, request(40, 100)], 32, 8)).at(-1)).toEqual([40, 8]);
  });

  it('never exceed the limits, serve every decoding request that fits, and always make progress', () => {
    const requests = fc.array(fc.record({ promptRows: fc.nat(300), ready: fc.boolean(), tenant: fc.constant('') }), {
      maxLength: 40,
    });
    fc.assert(
      fc.property(requests, fc.integer({ min: 1, max: 64 }), fc.integer({ min: 8, max: 64 }), (list, max, prompts) => {
        const candidates = list.map((one, arrival) => ({ ...one, arrival, lastTurn: -1 }));
        const pieces = chooseRows(candidates, max, prompts);
        const rows = pieces.reduce((sum, piece) => sum + piece.rows, 0);
        expect(rows).toBeLessThanOrEqual(max);
        const ready = candidates.filter(one => one.ready);
        const decoding = ready.filter(one => one.promptRows === 0);
        const decodeRows = decoding.length < ready.length ? Math.max(Math.ceil(max / 2), max - 8) : max;
        expect(pieces.filter(piece => piece.request.promptRows === 0)).toHaveLength(
          Math.min(decodeRows, decoding.length),
        );
        const chunks = pieces.filter(piece => piece.request.promptRows > 0);
        expect(chunks.reduce((sum, chunk) => sum + chunk.rows, 0)).toBeLessThanOrEqual(prompts);
        for (const chunk of chunks) {
          expect(chunk.rows).toBeGreaterThan(0);
          expect(chunk.rows).toBeLessThanOrEqual(chunk.request.promptRows);
        }
        if (ready.length > 0) expect(rows).toBeGreaterThan(0);
        expect(new Set(pieces.map(piece => piece.request)).size).toBe(pieces.length);
      }),
    );
  });
});

describe('the order of admission', () => {
  it('is the order of arrival within a tenant', () => {
    expect(admissionOrder([request(2), request(0), request(1)], []).map(one => one.arrival)).toEqual([0, 1, 2]);
  });

  it('alternates between tenants, and prefers those with fewer running requests', () => {
    const [a, b] = [{ tenant: 'a' }, { tenant: 'b' }];
    const waiting = [request(0, 9, a), request(1, 9, a), request(2, 9, a), request(3, 9, b)];
    expect(admissionOrder(waiting, []).map(one => one.arrival)).toEqual([0, 3, 1, 2]);
    expect(admissionOrder(waiting, [a, a]).map(one => one.arrival)).toEqual([3, 0, 1, 2]);
  });
});

it('the youngest request makes room', () => {
  expect(chooseVictim([request(3), request(9), request(4)])?.arrival).toBe(9);
  expect(chooseVictim([])).toBeUndefined();
});

describe('the number of prompt rows', () => {
  it('is the maximum before anything was measured', () => expect(promptRowsPerPass({}, false, 256)).toBe(256));

  it('makes passes of about 250 ms, at any depth', () => {
    expect(promptRowsPerPass({ perPromptRow: 1 }, false, 256)).toBe(250);
    expect(promptRowsPerPass({ perPromptRow: 4 }, false, 256)).toBe(62);
    expect(promptRowsPerPass({ perPromptRow: 0.01 }, false, 256)).toBe(256);
    expect(promptRowsPerPass({ perPromptRow: 1000 }, false, 256)).toBe(8);
  });

  it('keeps passes short while others decode', () => {
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 20 }, true, 256)).toBe(60);
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 4 }, true, 256)).toBe(50);
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 80 }, true, 256)).toBe(100);
    expect(promptRowsPerPass({ perPromptRow: 20, decode: 20 }, true, 256)).toBe(3);
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 10 }, false, 256)).toBe(250);
  });

  it('takes half of the time on a slow machine, and always makes progress', () => {
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 200 }, true, 256)).toBe(200);
    expect(promptRowsPerPass({ perPromptRow: 1000, decode: 20 }, true, 256)).toBe(1);
  });

  it('takes the share of the time that was asked for while others decode, and always makes progress', () => {
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 40 }, true, 256, 0.8)).toBe(160);
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 40 }, true, 256, 0.2)).toBe(10);
    expect(promptRowsPerPass({ perPromptRow: 20, decode: 40 }, true, 256, 0.2)).toBe(1);
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 40 }, true, 64, 0.8)).toBe(64);
    expect(promptRowsPerPass({ perPromptRow: 1, decode: 40 }, false, 256, 0.2)).toBe(250);
  });

  it('grows where a pass costs nearly the same for few rows as for many, also after a slow first pass', () => {
    const cost = (rows: number) => 16 + 0.15 * rows;
    let times = notePass({ decode: 4 }, { decodeRows: 1, promptRows: 64, ms: 3000 });
    let rows = 0;
    for (let pass = 0; pass < 20; pass++) {
      rows = promptRowsPerPass(times, true, 512);
      times = notePass(times, { decodeRows: 1, promptRows: rows, ms: 4 + cost(rows) });
    }
    expect(rows).toBeGreaterThan(200);
    expect(cost(rows)).toBeLessThan(60);
  });

  it('follows the measured times', () => {
    let times = notePass({}, { decodeRows: 4, promptRows: 0, ms: 10 });
    times = notePass(times, { decodeRows: 4, promptRows: 20, ms: 50 });
    expect(times).toEqual({ decode: 10, perPromptRow: 2 });
    expect(notePass(times, { decodeRows: 0, promptRows: 10, ms: 40 }).perPromptRow).toBe(3);
  });
});

describe('drafts', () => {
  const drafting = (...probabilities: number[]) => ({ request: { draftProbabilities: () => probabilities }, rows: 1 });
  const sure = [0.95, 0.9, 0.86, 0.81, 0.77, 0.74, 0.7];
  const rowsOf = (pieces: { rows: number }[]) => pieces.map(({ rows }) => rows);
  const times = { decode: 30, perDraftRow: 10 };

  it('fill the rows that are computed at once, if they promise more than these cost', () => {
    expect(rowsOf(addDrafts([drafting(...sure)], 32, times))).toEqual([8]);
    expect(rowsOf(addDrafts([drafting(0.8, 0.6, 0.4, 0.2, 0.1)], 32, times))).toEqual([4]);
    expect(rowsOf(addDrafts([drafting(0.6, 0.36, 0.2)], 32, times))).toEqual([1]);
    // Most of the rows would be empty.
    expect(rowsOf(addDrafts([drafting(0.9)], 32, times))).toEqual([1]);
    expect(rowsOf(addDrafts([drafting()], 32, times))).toEqual([1]);
  });

  it('are fewer in a batch, whose passes are worth more, and go to those who are most sure', () => {
    const [a, b, c] = [drafting(...sure), drafting(0.5, 0.25), drafting(0.99, 0.98, 0.97)];
    expect(rowsOf(addDrafts([a, b, c], 32, times))).toEqual([1, 1, 2]);
    expect(rowsOf(addDrafts([a, b, c], 32, { decode: 30, perDraftRow: 1 }))).toEqual([8, 3, 4]);
    expect(rowsOf(addDrafts([a, b, c], 3, { decode: 30, perDraftRow: 1 }))).toEqual([1, 1, 1]);
  });

  it('wait until a pass was measured', () => {
    expect(rowsOf(addDrafts([drafting(...sure)], 32, {}))).toEqual([1]);
    expect(rowsOf(addDrafts([drafting(...sure)], 32, { decode: 30 }))).toEqual([8]);
  });

  it('cost what was measured; if that was long ago, they are tried again', () => {
    let measured = notePass({ decode: 30 }, { decodeRows: 1, draftRows: 3, promptRows: 0, ms: 90 });
    expect(measured).toEqual({ decode: 30, perDraftRow: 20 });
    measured = notePass(measured, { decodeRows: 1, draftRows: 7, promptRows: 0, ms: 100 });
    expect(measured.perDraftRow).toBe(17.5);
    expect(notePass(measured, { decodeRows: 3, draftRows: 1, promptRows: 0, ms: 300 })).toEqual(measured);
    for (let i = 0; i < 200; i++) measured = notePass(measured, { decodeRows: 1, promptRows: 0, ms: 30 });
    expect(measured.perDraftRow).toBeLessThan(12);
  });
});

describe('waiting for pages from a tier', () => {
  const page = 128;
  /** 128 ms per page. */
  const times = { perPromptRow: 1 };
  const nothing = { arrived: 0, left: 10, arrivedMs: 0, silentMs: 0 };

  it('takes no longer than computing them would', () => {
    expect(prefetchWait(nothing, times, page)).toBe(1280);
    expect(prefetchWait({ ...nothing, silentMs: 1000 }, times, page)).toBe(280);
    expect(prefetchWait({ ...nothing, silentMs: 1300 }, times, page)).toBe(0);
  });

  it('is bounded where computing is slow, or its speed is not known yet', () => {
    expect(prefetchWait({ ...nothing, left: 1000 }, times, page)).toBe(2000);
    expect(prefetchWait(nothing, {}, page)).toBe(2000);
    expect(prefetchWait({ ...nothing, silentMs: 2000 }, {}, page)).toBe(0);
  });

  it('goes on while they come faster than they could be computed', () => {
    expect(prefetchWait({ arrived: 5, left: 5, arrivedMs: 500, silentMs: 40 }, times, page)).toBe(600);
    expect(prefetchWait({ arrived: 5, left: 5, arrivedMs: 700, silentMs: 0 }, times, page)).toBe(0);
    expect(prefetchWait({ arrived: 10, left: 0, arrivedMs: 1, silentMs: 0 }, times, page)).toBe(0);
  });
});
