/** Arguments are validated before any work. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import type { DecodeLeavesOptions } from '../api/decode-leaves.ts';
import { type LoadOptions, loadModel, type Model } from '../api/model.ts';
import type { loadRules } from '../engine/options.ts';
import type { RenderOptions } from '../model/template.ts';
import { InputError, UnsupportedError } from '../util/errors.ts';
import type { EncodeChatOptions } from './answer-stream.ts';
import type { ChatOptions, PromptOptions } from './conversation-options.ts';
import {
  type chatRules,
  checkConversationOptions,
  type decodeLeavesRules,
  type encodeChatRules,
  type promptRules,
  type renderRules,
} from './options.ts';

/** Checked by the compiler: one rule per option, and no other rules. */
type Names<Rules, Options> = [keyof Rules, keyof Options] extends [keyof Options, keyof Rules] ? true : never;
const agreed: true[] = [
  true satisfies Names<typeof loadRules, LoadOptions>,
  true satisfies Names<typeof chatRules, ChatOptions>,
  true satisfies Names<typeof promptRules, PromptOptions>,
  true satisfies Names<typeof renderRules, RenderOptions>,
  true satisfies Names<typeof encodeChatRules, EncodeChatOptions>,
  true satisfies Names<typeof decodeLeavesRules, DecodeLeavesOptions>,
];

const file = writeGguf(tinyModel({ layers: 1 }));
const load = (options: unknown) => loadModel(new Blob([file]), options as LoadOptions);
const messages = [{ role: 'user', content: 'Hi' }];
let model: Model;
beforeAll(async () => {
  model = await load({ device: 'js' });
});
afterAll(() => model.dispose());

it('the rule tables have the same names as the option interfaces', () =>
  expect(agreed).toEqual([true, true, true, true, true, true]));

const invalidOptions: [options: unknown, message: RegExp][] = [
  [{ temperature: '0.5' }, /^temperature must be a number from 0 to 100; got the string "0\.5"\.$/],
  [{ temperature: Number.NaN }, /^temperature .* number NaN/],
  [{ temperature: null }, /^temperature .* null/],
  [{ topK: 1.5 }, /^topK must be an integer, 0 or more; got the number 1\.5/],
  [{ seed: 2 ** 53 }, /^seed/],
  [{ logprobs: true }, /^logprobs .* boolean true/],
  [{ maxTokens: '5' }, /^maxTokens .* "5"/],
  [{ maxTokens: 0 }, /^maxTokens/],
  [{ stop: 5 }, /^stop must be a string or an array of strings.* number 5/],
  [{ stop: ['a', ''] }, /^stop/],
  [{ stop: ['a', 5] }, /^stop/],
  [{ signal: {} }, /^signal must be an AbortSignal; got an empty object/],
  [{ signal: new AbortController() }, /^signal .* AbortController/],
  [{ ignoreEos: 'yes' }, /^ignoreEos/],
  [{ onPrefill: 1 }, /^onPrefill must be a function/],
  [{ max_tokens: 5 }, /has no option max_tokens\. Did you mean maxTokens\?/],
  [{ temprature: 1 }, /Did you mean temperature\?/],
  [{ banana: 1 }, /has no option banana\. Its options are temperature, .*maxTokens/],
  [5, /options of .* must be an object.* number 5/],
  [null, /must be an object.* null/],
  ['maxTokens', /must be an object.*"maxTokens"/],
];

describe('invalid options of chat, generate, send and complete', () => {
  it.each(invalidOptions)('%j', async (options, message) => {
    const invalid = options as ChatOptions & PromptOptions;
    const conversation = model.conversation();
    const calls = [
      () => model.chat(messages, invalid),
      () => model.generate('a', invalid),
      () => conversation.chat(messages, invalid),
      () => conversation.generate('a', invalid),
      () => conversation.send('a', invalid),
    ];
    for (const call of calls) {
      expect(call).toThrow(InputError);
      expect(call).toThrow(message);
    }
    for (const prompt of ['a', messages]) {
      await expect(model.complete(prompt, invalid)).rejects.toThrow(InputError);
      await expect(model.complete(prompt, invalid)).rejects.toThrow(message);
    }
  });

  it.each<[unknown, RegExp]>([
    [{ render: 5 }, /options of chat must be an object/],
    [{ render: { variables: [] } }, /^render\.variables must be an object; got an empty array/],
    [{ render: { variables: { messages: [] } } }, /cannot set messages/],
    [{ render: { variables: { f: () => 1 } } }, /render\.variables\.f .* function/],
    [{ render: { addGenerationPrompt: 1 } }, /^render\.addGenerationPrompt/],
    [{ render: { now: new Date('never') } }, /^render\.now must be a valid Date/],
    [{ render: { add_generation_prompt: true } }, /Did you mean render\.addGenerationPrompt\?/],
    [{ special: true }, /chat has no option special/],
  ])('chat: %j', (options, message) => {
    expect(() => model.chat(messages, options as ChatOptions)).toThrow(InputError);
    expect(() => model.chat(messages, options as ChatOptions)).toThrow(message);
  });

  it('undefined counts as not given', async () => {
    const options = { maxTokens: 1, temperature: undefined, stop: undefined, signal: undefined, render: undefined };
    expect((await model.complete(messages, options)).ids).toHaveLength(1);
    expect((await model.complete('a', { maxTokens: 1, max_tokens: undefined } as ChatOptions)).ids).toHaveLength(1);
  });
});

describe('invalid prompts and messages', () => {
  it.each<[unknown, RegExp]>([
    ['hi', /Messages must be an array.*"hi"/],
    [undefined, /undefined/],
    [[{ role: 'user' }], /messages\[0\]\.content .* undefined/],
    [[{ content: 'Hi' }], /messages\[0\]\.role/],
    [[null], /messages\[0\] .* null/],
  ])('messages: %j', (invalid, message) => {
    expect(() => model.chat(invalid as typeof messages)).toThrow(InputError);
    expect(() => model.chat(invalid as typeof messages)).toThrow(message);
  });

  it('an image is not supported', () => {
    const content = [{ type: 'image_url' }] as never;
    expect(() => model.chat([{ role: 'user', content }])).toThrow(UnsupportedError);
  });

  it.each<[unknown, RegExp]>([
    [undefined, /A prompt must be a string or an array of token ids; got undefined/],
    [null, /null/],
    [5, /number 5/],
    [{ role: 'user', content: 'Hi' }, /keys role, content/],
    [[1, 'a'], /prompt\[1\] is the string "a"/],
    [[[1]], /messages\[0\]|prompt\[0\]/],
  ])('a prompt: %j', async (invalid, message) => {
    expect(() => model.generate(invalid as string)).toThrow(InputError);
    await expect(model.complete(invalid as string)).rejects.toThrow(InputError);
    await expect(model.complete(invalid as string)).rejects.toThrow(message);
  });

  it('conversation options and contents', () => {
    expect(() => model.conversation().send(5 as never)).toThrow(/content must be a string/);
    expect(() => model.conversation({ system: 5 } as never)).toThrow(/system must be a string; got the number 5/);
    expect(() => model.conversation({ sytem: 'x' } as never)).toThrow(/Did you mean system\?/);
    expect(() => checkConversationOptions({ messages: [{ role: 'user' }] })).toThrow(/messages\[0\]\.content/);
    checkConversationOptions({ system: 'Be brief.', messages: [] });
  });
});

describe('invalid options of loadModel', () => {
  it.each<[unknown, RegExp]>([
    [{ quality: 'best' }, /^quality must be 'safe' or 'balanced' or 'small'; got the string "best"\.$/],
    [
      { quality: 'safe', kv: 'tq4' },
      /^kv: 'tq4' and quality: 'safe' both choose the codec of the cache\. Drop quality/,
    ],
    [{ quality: 'safe', contextMemory: 1e6 }, /^contextMemory and quality: 'safe' both choose .* Drop quality/],
    [{ kv: 4 }, /^kv must be a codec spec such as 'tq4', or 'auto'; got the number 4\.$/],
    [{ context: '8k' }, /^context must be an integer, 1 or more; got the string "8k"/],
    [{ context: 0.5 }, /^context/],
    [{ kvMemory: '2GB' }, /^kvMemory must be a number of bytes/],
    [{ pageTokens: -1 }, /^pageTokens/],
    [{ profile: 5 }, /^profile/],
    [{ overflow: 'slid' }, /^overflow must be 'error' or 'slide'; got the string "slid"/],
    [{ device: 1 }, /^device/],
    [{ threads: 'all' }, /^threads/],
    [{ prefillChunk: 70000 }, /^prefillChunk must be an integer from 1 to 65536/],
    [{ memoryLimit: -5 }, /^memoryLimit/],
    [{ signal: 'stop' }, /^signal/],
    [{ onProgress: {} }, /^onProgress/],
    [{ kv_memory: 5 }, /loadModel has no option kv_memory\. Did you mean kvMemory\?/],
    [{ contextSize: 5 }, /has no option contextSize/],
    ['tq4', /options of loadModel must be an object/],
  ])('%j', async (options, message) => {
    await expect(load(options)).rejects.toThrow(InputError);
    await expect(load(options)).rejects.toThrow(message);
  });
});
