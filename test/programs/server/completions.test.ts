/** POST /v1/completions on a tiny random model. */
import { describe, expect, it } from 'vitest';
import { greedy, type Json, openServer, openService, readEvents } from './tiny-server.ts';

const PATH = '/v1/completions';
const { ask, json, service } = await openServer();
const textsOf = ({ choices }: Json): string[] => choices.map(({ text }: Json) => text);

describe('a prompt', () => {
  it('is a text, token ids, or several of either', async () => {
    const [text] = textsOf(await json(PATH, { prompt: 'Odin', ...greedy(8) }));
    const ids = await service.tokenize('Odin');
    expect(textsOf(await json(PATH, { prompt: ids, ...greedy(8) }))).toEqual([text]);
    expect(textsOf(await json(PATH, { prompt: [ids, ids], ...greedy(8) }))).toEqual([text, text]);
    const { choices, usage } = await json(PATH, { prompt: ['Odin', 'Thor'], n: 2, ...greedy(8) });
    expect(choices.map(({ index }: Json) => index)).toEqual([0, 1, 2, 3]);
    expect(choices.slice(0, 2).map(({ text }: Json) => text)).toEqual([text, text]);
    expect(usage).toMatchObject({ prompt_tokens: 8, completion_tokens: 32 });
  });

  it('gets 16 tokens unless more are asked for', async () => {
    const { usage, choices } = await json(PATH, { prompt: 'Odin', ignore_eos: true });
    expect(usage.completion_tokens).toBe(16);
    expect(choices[0].finish_reason).toBe('length');
  });

  it('is repeated with echo', async () => {
    const plain = textsOf(await json(PATH, { prompt: 'Odin', ...greedy(4) }))[0];
    expect(textsOf(await json(PATH, { prompt: 'Odin', echo: true, ...greedy(4) }))).toEqual([`Odin${plain}`]);
    const events = await readEvents(await ask(PATH, { prompt: 'Odin', echo: true, stream: true, ...greedy(4) }));
    expect(events.flatMap(event => event.choices?.[0]?.text ?? []).join('')).toBe(`Odin${plain}`);
  });
});

describe('a suffix', async () => {
  // Letters take the place of control tokens: what they spell is seen in the prompt.
  const letter = (text: string) => text.charCodeAt(0);
  const metadata = {
    'tokenizer.ggml.fim_pre_token_id': letter('P'),
    'tokenizer.ggml.fim_suf_token_id': letter('S'),
    'tokenizer.ggml.fim_mid_token_id': letter('M'),
  };
  const { json, ask, service } = await openServer({}, await openService(2, { metadata }));

  it('is the text after the gap that the completion fills', async () => {
    const { infill, vocab } = service.info;
    expect([infill, vocab]).toEqual([true, 257]);
    const ids = (text: string) => [...text].map(letter);
    const raw = await json(PATH, {
      prompt: [letter('P'), ...ids('be'), letter('S'), ...ids('re'), letter('M')],
      ...greedy(8),
    });
    const filled = await json(PATH, { prompt: 'be', suffix: 're', ...greedy(8) });
    expect(textsOf(filled)).toEqual(textsOf(raw));
    expect(filled.usage.prompt_tokens).toBe(7);
    const plain = await json(PATH, { prompt: 'be', suffix: '', ...greedy(8) });
    expect(plain.usage.prompt_tokens).toBe(2);
  });

  it('needs a prompt that is a text', async () => {
    const response = await ask(PATH, { prompt: [1, 2], suffix: 'x' });
    expect([response.status, ((await response.json()) as Json).error.param]).toEqual([400, 'suffix']);
  });
});

it('streams', async () => {
  const request = { prompt: 'Odin', stream: true, stream_options: { include_usage: true }, logprobs: 1, ...greedy(6) };
  const events = await readEvents(await ask(PATH, request));
  expect(events.at(-1)).toBe('[DONE]');
  expect(events.at(-2)).toMatchObject({ choices: [], usage: { completion_tokens: 6 } });
  expect(events.at(-3).choices[0].finish_reason).toBe('length');
  const whole = await json(PATH, { prompt: 'Odin', logprobs: 1, ...greedy(6) });
  const parts = events.flatMap(event => event.choices?.[0]?.logprobs ?? []);
  const { tokens, token_logprobs, text_offset } = whole.choices[0].logprobs;
  expect(parts.flatMap(part => part.tokens)).toEqual(tokens);
  expect(parts.flatMap(part => part.token_logprobs)).toEqual(token_logprobs);
  expect(parts.flatMap(part => part.text_offset)).toEqual(text_offset);
  expect(tokens).toHaveLength(6);
});

it('refuses what it does not support, and says why', async () => {
  for (const [request, param] of [
    [{ prompt: 'x', suffix: 'y' }, 'suffix'],
    [{ prompt: 'x', echo: true, logprobs: 1 }, 'echo'],
    [{ prompt: 'x', best_of: 3 }, 'best_of'],
    [{ prompt: Array(9).fill('x'), n: 2 }, 'prompt'],
    [{ prompt: [] }, 'prompt'],
    [{ prompt: { text: 'x' } }, 'prompt'],
    [{ prompt: 'x', id_slot: 1, n: 2 }, 'id_slot'],
    [{ prompt: 'x', id_slot: 1, cache_salt: 'a' }, 'id_slot'],
  ] as const) {
    const response = await ask(PATH, request);
    expect(response.status).toBe(400);
    expect(((await response.json()) as Json).error.param).toBe(param);
  }
  const unknownToken = await ask(PATH, { prompt: [1e6] });
  expect(unknownToken.status).toBe(400);
});
