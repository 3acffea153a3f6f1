import { beforeAll, describe, expect, it } from 'vitest';
import { type ModelFile, openModelFile } from '../engine/engine.ts';
import { mimirPath } from '../eval/needle/demo.ts';
import { InputError } from '../util/errors.ts';
import { addSpaces, parseConversation, readBuiltInText, readDocuments } from './built-in-text.ts';

let file: ModelFile;
let texts: Awaited<ReturnType<typeof readBuiltInText>>;
beforeAll(async () => {
  file = await openModelFile(mimirPath);
  texts = await readBuiltInText(file);
});

describe('the built-in calibration text', () => {
  it('has many kinds of text, with more tokens than calibration reads by default', async () => {
    expect(texts.map(({ name }) => name)).toEqual([
      'encyclopedia',
      'prose',
      'chat',
      'web-code',
      'systems-code',
      'c-headers',
      'structured',
      'tables',
      'logs',
      'maths',
      'markdown',
      'legal',
      'languages',
      'recall',
    ]);
    for (const { ids } of texts) expect(ids.length).toBeGreaterThan(5_000);
    expect(texts.reduce((sum, { ids }) => sum + ids.length, 0)).toBeGreaterThan(250_000);
  });

  it('states facts that are quoted exactly much later', async () => {
    const documents = await readDocuments('recall');
    const quotedLater = documents.filter(document => {
      const codes = [...document.matchAll(/\b(?=\w*\d)[\w-]{5,}\b/g)];
      return codes.some(({ 0: code, index }) => document.lastIndexOf(code) > index + 1500);
    });
    expect(quotedLater.length).toBeGreaterThan(documents.length / 2);
  });

  it('has chats with the control tokens of the template, and no others', async () => {
    const isControl = (id: number) => file.tokenizer.tokenBytes(id).length === 0;
    for (const { name, ids } of texts) expect([name, ids.some(isControl)]).toEqual([name, name === 'chat']);
  });

  it('leaves out system messages if the template refuses them', async () => {
    const { render, source } = file.template;
    const template: ModelFile['template'] = {
      source,
      render(messages, options, mapLiteral) {
        if (messages[0].role === 'system') throw new InputError('This model has no system role.');
        return render(messages, options, mapLiteral);
      },
    };
    const without = await readBuiltInText({ ...file, template });
    expect(without[2].ids.length).toBeLessThan(texts[2].ids.length);
    expect(without[2].ids.length).toBeGreaterThan(0.8 * texts[2].ids.length);
  });
});

it('conversations are parsed into messages', () => {
  expect(parseConversation('[system]\nBe brief.\n[user]\nHi\n\n[there]\n[assistant]\nHello.')).toEqual([
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'Hi\n\n[there]' },
    { role: 'assistant', content: 'Hello.' },
  ]);
});

it('spaces are added around punctuation, and @ within numbers and words', () => {
  expect(addSpaces('A well-known (old) town of 2,300; "yes".')).toBe(
    'A well @-@ known ( old ) town of 2 @,@ 300 ; " yes " . ',
  );
});
