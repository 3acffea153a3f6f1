/** The parts of `npm run bench -- serve`: what is sent when, and how answers are read and summarized. */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { readEvents } from '../../bench/serve/client.ts';
import { type ChatLoad, chatLoad, clientLoad, poissonArrivals, traceLoad } from '../../bench/serve/load.ts';
import { percentile, runLoad, summarize } from '../../bench/serve/measure.ts';
import { createRandom } from '../../src/engine/random.ts';

const text = readFileSync(new URL('../../LICENSE', import.meta.url), 'utf8');

describe('arrivals', () => {
  it('increase, and come at the given rate', () => {
    const times = poissonArrivals(10_000, 4, createRandom(1));
    expect(times.every((time, i) => time > (times[i - 1] ?? 0))).toBe(true);
    expect(times.length / times[times.length - 1]).toBeCloseTo(4, 0);
  });

  it('are not evenly spaced: a quarter of the gaps is shorter than .3 of the mean', () => {
    const times = poissonArrivals(10_000, 1, createRandom(2));
    const gaps = times.map((time, i) => time - (times[i - 1] ?? 0));
    expect(gaps.filter(gap => gap < 0.3).length / gaps.length).toBeCloseTo(1 - Math.exp(-0.3), 1);
  });
});

describe('chats over documents', () => {
  const load: ChatLoad = { rate: 2, chats: 6, turns: 3, documents: 2, documentTokens: 500, answerTokens: 8, seed: 7 };

  it('have their turns in order, and share documents', () => {
    const chats = chatLoad(load, text);
    expect(chats.map(({ turns }) => turns.length)).toEqual(Array(6).fill(3));
    for (const { turns } of chats)
      expect(turns.map(({ at }) => at)).toEqual(turns.map(({ at }) => at).toSorted((a, b) => a - b));
    expect(new Set(chats.map(({ system }) => system)).size).toBe(2);
  });

  it('are the same for the same seed only', () => {
    expect(chatLoad(load, text)).toEqual(chatLoad(load, text));
    expect(chatLoad({ ...load, seed: 8 }, text)).not.toEqual(chatLoad(load, text));
  });

  it('need enough text', () => {
    expect(() => chatLoad({ ...load, documentTokens: 1e6 }, text)).toThrow(/Use a longer --text/);
  });
});

it('clients have a system prompt in common, if asked for, and questions of their own', () => {
  const chats = clientLoad({ clients: 3, systemTokens: 500, turns: 2, answerTokens: 8, seed: 1 }, text);
  expect(new Set(chats.map(({ system }) => system?.length))).toEqual(new Set([2000]));
  expect(new Set(chats.flatMap(({ turns }) => turns.map(({ question }) => question))).size).toBe(6);
  const [plain] = clientLoad({ clients: 1, systemTokens: 0, turns: 2, answerTokens: 8, seed: 1 }, text);
  expect(plain.system).toBeUndefined();
});

describe('a trace', () => {
  const lines = [
    { timestamp: 3000, input_length: 1500, output_length: 320, hash_ids: [0, 1, 2] },
    { timestamp: 6000, input_length: 1200, output_length: 32, hash_ids: [0, 1, 3] },
    { timestamp: 9000, input_length: 900, output_length: 1, hash_ids: [4, 5] },
  ];
  const trace = lines.map(line => JSON.stringify(line)).join('\n');
  const options = { rate: 3, count: 3, scale: 16, seed: 1 };
  const questions = traceLoad(trace, options, text).map(({ turns }) => turns[0].question);

  it('keeps its order and gaps, at the given rate', () => {
    expect(traceLoad(trace, options, text).map(({ turns }) => turns[0].at)).toEqual([0, 0.5, 1]);
  });

  it('has prompts and answers of scaled lengths, with the same shared prefixes', () => {
    expect(questions.map(question => question.length)).toEqual([376, 300, 224]);
    expect(traceLoad(trace, options, text).map(({ turns }) => turns[0].maxTokens)).toEqual([20, 2, 1]);
    expect(questions[0].slice(0, 256)).toBe(questions[1].slice(0, 256));
    expect(questions[0].slice(256, 300)).not.toBe(questions[1].slice(256, 300));
    expect(questions[2].slice(0, 128)).not.toBe(questions[0].slice(0, 128));
  });

  it('is refused if it is something else', () => {
    expect(() => traceLoad('{"a": 1}', options, text)).toThrow('Line 1 of the trace has no timestamp and hash_ids');
  });
});

describe('server-sent events', () => {
  const read = async (stream: string, cuts: readonly number[]) => {
    const bytes = new TextEncoder().encode(stream);
    const bounds = [0, ...cuts.map(cut => cut % (bytes.length + 1)).toSorted((a, b) => a - b), bytes.length];
    async function* parts() {
      for (const [i, end] of bounds.slice(1).entries()) yield bytes.slice(bounds[i], end);
    }
    const events: string[] = [];
    for await (const event of readEvents(parts())) events.push(event);
    return events;
  };

  it('are the same however the bytes are cut', async () => {
    const line = fc.string({ unit: 'grapheme', minLength: 1 }).filter(value => !/[\r\n]/.test(value) && value !== '');
    await fc.assert(
      fc.asyncProperty(
        fc.array(line),
        fc.array(fc.nat()),
        fc.constantFrom('\n', '\r\n', '\r'),
        async (events, cuts, end) => {
          const stream = events.map(event => `: heartbeat${end}${end}id: 1${end}data: ${event}${end}${end}`).join('');
          // A last carriage return could be half of a line's end, so a comment follows.
          expect(await read(`${stream}: end`, cuts)).toEqual(events);
        },
      ),
    );
  });

  it('join the lines of one event, and drop an event that was cut off', async () => {
    expect(await read('data: a\ndata:b\n\ndata: c\n', [])).toEqual(['a\nb']);
  });
});

describe('results', () => {
  it('a percentile is one of the values, and that part of them does not exceed it', () => {
    fc.assert(
      fc.property(
        fc.array(fc.double({ noNaN: true }), { minLength: 1 }),
        fc.double({ min: 0, max: 1, noNaN: true }),
        (values, part) => {
          const value = percentile(values, part);
          expect(values).toContain(value);
          expect(values.filter(other => other <= value).length).toBeGreaterThanOrEqual(part * values.length);
          expect(values.filter(other => other < value).length).toBeLessThanOrEqual(part * values.length);
        },
      ),
    );
    expect(percentile([], 0.5)).toBeNaN();
  });

  it('are summed over rounds', () => {
    const answer = { text: '', totalMs: 100, promptTokens: 100, cachedTokens: 50, outputTokens: 10 };
    const whole = { unfinished: [], unasked: 0, seconds: 30 };
    const outcomes = [
      { ...whole, answers: [{ ...answer, firstMs: 10, gapsMs: [1, 2] }], errors: { 'status 429': 1 } },
      { ...whole, answers: [{ ...answer, cachedTokens: 0, firstMs: 30, gapsMs: [3] }], errors: { 'status 429': 2 } },
    ];
    expect(summarize(outcomes)).toEqual({
      requests: 2,
      failed: 3,
      unfinished: 0,
      unasked: 0,
      errors: { 'status 429': 3 },
      seconds: 60,
      requestsPerMinute: 2,
      outputTokensPerSecond: 20 / 60,
      cached: 0.25,
      firstMs: { p50: 10, p99: 30, isBound: false, uncached: 30 },
      gapMs: { p50: 2, p99: 3 },
    });
  });
});

describe('a server that is too slow', () => {
  it('has a result: unfinished requests count as unanswered, and as waiting at least until the time was up', async () => {
    const word = `data: ${JSON.stringify({ choices: [{ delta: { content: 'mead' } }] })}\n\n`;
    let asked = 0;
    // It answers the first request, begins the second, and is silent about the others.
    const server = createServer((_, response) => {
      asked++;
      response.writeHead(200, { 'content-type': 'text/event-stream' }).flushHeaders();
      if (asked <= 2) response.write(word);
      if (asked === 1) response.end('data: [DONE]\n\n');
    }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const turn = (at: number) => ({ at, question: 'Who was Kvasir?', maxTokens: 4 });
    const chats = [{ turns: [turn(0)] }, { turns: [turn(0.1)] }, { turns: [turn(0.2), turn(0.3)] }];
    const outcome = await runLoad({ url, model: 'slow' }, chats, { limitMs: 1000 });
    server.closeAllConnections();
    server.close();
    const result = summarize([outcome]);
    expect(result).toMatchObject({ requests: 1, failed: 0, unfinished: 2, unasked: 1, firstMs: { isBound: true } });
    expect(result.requestsPerMinute).toBeLessThanOrEqual(60);
    expect(result.firstMs.p99).toBeGreaterThan(500);
    expect(result.firstMs.p99).toBeLessThan(1000);
  });
});
