/** The abilities of the packaged model that its model card claims, on short documents. */
import { statSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { mimir } from '../../../test/support/mimir.ts';
import { loadModel, type Model } from '../../api/model.ts';
import { createDocument, evenDepths, readGrammar } from './document.ts';

const long = process.env.KVASIR_LONG === '1';

describe('Mimir', () => {
  let model: Model;
  beforeAll(async () => {
    model = await loadModel(mimir, { kv: 'f16', device: 'wasm', threads: 1 });
  });
  afterAll(() => model.dispose());

  const ask = async (content: string) =>
    (await model.complete([{ role: 'user', content }], { temperature: 0, maxTokens: 12 })).text;

  it('is at most 10 MB', () => expect(statSync(mimir).size).toBeLessThan(10e6));

  it('encodes a number of four digits as two tokens', () => {
    const { tokenizer } = model;
    const parts = (text: string) => tokenizer.encode(text).map(id => tokenizer.decode([id]));
    expect(parts(' 4817')).toEqual([' 48', '17']);
    expect(parts('The code is 4817.')).toEqual(['The', ' code', ' is', ' 48', '17', '.']);
  });

  it('answers with the words of a fact, among similar facts', async () => {
    const facts =
      'The door code of the old mill is 4817. The door code of the old barn is 2265. The tall mill belongs to Ada.';
    expect(await ask(`${facts}\n\nWhich code opens the door of the old mill?`)).toBe(' 4817');
    expect(await ask(`${facts}\n\nWho owns the tall mill?`)).toBe(' Ada');
  });

  it.each(long ? [1000, 6000] : [1000])(
    'answers nine of ten questions on a document of %i tokens',
    async tokens => {
      const count = (text: string) => model.tokenizer.encode(text).length;
      const { text, facts } = createDocument(await readGrammar(), { seed: 1, tokens, depths: evenDepths(10), count });
      const conversation = model.conversation();
      let correct = 0;
      for (const [i, { question, answer }] of facts.entries()) {
        const message = i === 0 ? `${text}\n\n${question}` : question;
        const { text: reply } = await conversation.send(message, { temperature: 0, maxTokens: 12 }).result();
        if (reply.trim() === answer) correct++;
      }
      await conversation.dispose();
      expect(correct).toBeGreaterThanOrEqual(9);
    },
    600_000,
  );

  it('tells a story on request', async () => {
    const request = [{ role: 'user', content: 'Tell me a story about a lost teapot.' }];
    const { text, finish } = await model.complete(request, { temperature: 0 });
    expect(text).toContain('could not find');
    expect(text.split('teapot').length).toBeGreaterThan(3);
    expect(finish).toBe('stop');
  });
});
