/** Tools with the templates of models, which llama.cpp's repository contains: prompts, forced calls and free ones. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import type { Tool } from '../src/chat/answer.ts';
import { type AnswerRequest, prepareAnswer, streamParts } from '../src/chat/answer-stream.ts';
import { createConstraints } from '../src/engine/grammar/constraint.ts';
import { emptyResult } from '../src/engine/stream.ts';
import { detectAnswerFormat } from '../src/model/answer-format.ts';
import { type ChatMessage, createChatTemplate } from '../src/model/template.ts';
import { byteToUnicode } from '../src/model/tokenizer/bytes.ts';
import { createTokenizer } from '../src/model/tokenizer.ts';
import { checkOutOfLlamaCpp } from './support/llama-cpp-repository.ts';

/** A token per byte, and these control tokens; the last one ends an answer. */
function tokenizerWith(controls: readonly string[]) {
  const tokens = [...byteToUnicode, ...controls];
  return createTokenizer(
    new Map<string, unknown>([
      ['tokenizer.ggml.model', 'gpt2'],
      ['tokenizer.ggml.pre', 'gpt-2'],
      ['tokenizer.ggml.tokens', tokens],
      ['tokenizer.ggml.token_type', tokens.map(text => (controls.includes(text) ? 3 : 1))],
      ['tokenizer.ggml.merges', ['x x']],
      ['tokenizer.ggml.eos_token_id', tokens.length - 1],
    ]),
  );
}

const parameters = {
  type: 'object',
  properties: { city: { type: 'string' }, days: { type: 'integer' } },
  required: ['city', 'days'],
};
const tools: Tool[] = [{ type: 'function', function: { name: 'weather', description: 'Forecast', parameters } }];
const args = { city: 'Oslo', days: 3 };
const asked: ChatMessage[] = [{ role: 'user', content: 'How is the weather?' }];
const answered: ChatMessage[] = [
  ...asked,
  {
    role: 'assistant',
    content: null,
    tool_calls: [
      { id: 'call_0123456789abcdefABCDEF', type: 'function', function: { name: 'weather', arguments: args } },
    ],
  },
  { role: 'tool', tool_call_id: 'call_0123456789abcdefABCDEF', content: 'Rain.' },
];

const MISTRAL = ['[TOOL_CALLS]', '[ARGS]', '[CALL_ID]', '[THINK]', '[/THINK]', '[INST]', '</s>'];
const QWEN = ['<tool_call>', '</tool_call>', '<|im_start|>', '<|im_end|>'];
const qwenCall =
  '<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>';
const glmCall =
  'weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n';
const hermes = `<tool_call>\n{"name": "weather", "arguments": ${JSON.stringify(args)}}\n</tool_call>`;

describe.each([
  ['Qwen3-Coder', 'qwen3-coder', QWEN, `<tool_call>\n${qwenCall}\n</tool_call>`, hermes],
  [
    'ByteDance-Seed-OSS',
    'seed-oss',
    ['<seed:think>', '</seed:think>', '<seed:eos>'],
    `<seed:think>Hm.</seed:think><seed:tool_call>\n${qwenCall.replace(/>\n(\w+)\n</g, '>$1<')}\n</seed:tool_call>`,
    hermes,
  ],
  [
    'GLM-4.6',
    'glm',
    ['<tool_call>', '</tool_call>', '<think>', '</think>', '<arg_key>', '<|user|>'],
    `<think>Hm.</think><tool_call>${glmCall}</tool_call>`,
    hermes,
  ],
  [
    'Mistral-Small-3.2-24B-Instruct-2506',
    'mistral',
    MISTRAL,
    `[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]${JSON.stringify(args)}`,
    undefined,
  ],
  [
    'mistralai-Ministral-3-14B-Reasoning-2512',
    'mistral',
    MISTRAL,
    `[THINK]Hm.[/THINK][TOOL_CALLS]weather[ARGS]${JSON.stringify(args)}`,
    undefined,
  ],
  [
    'mistralai-Mistral-Nemo-Instruct-2407',
    'mistral-list',
    MISTRAL,
    `[TOOL_CALLS][{"name": "weather", "arguments": ${JSON.stringify(args)}}]`,
    undefined,
  ],
] as const)('%s', (name, format, controls, call, forced = call) => {
  let source: string;
  beforeAll(() => {
    source = readFileSync(join(checkOutOfLlamaCpp(`models/templates/${name}.jinja`)), 'utf8');
  });
  const tokenizer = tokenizerWith(controls);
  const prepare = (messages: readonly ChatMessage[], request: AnswerRequest = {}) =>
    prepareAnswer(
      { tokenizer, template: createChatTemplate({ source }), constraints: createConstraints(tokenizer) },
      messages,
      {
        tools,
        ...request,
      },
    );

  /** The answer of a model that writes this text, if the grammar allows it. */
  async function answer(text: string, request: AnswerRequest = {}) {
    const { output, parser } = prepare(asked, request);
    const ids = tokenizer.encode(text, { parseSpecialTokens: true });
    async function* tokens() {
      for (const id of ids) {
        const { constraint } = output;
        if (constraint && ((constraint.mask()[id >>> 5] >>> (id & 31)) & 1) === 0)
          throw new Error(`The grammar does not allow ${tokenizer.decode([id], { includeSpecialTokens: true })} here.`);
        constraint?.accept(id);
        yield { id, text: output.markers?.get(id) ?? tokenizer.decode([id]), logProb: 0 } as never;
      }
    }
    const result = { ...emptyResult(), finish: 'stop' as const };
    for await (const _ of streamParts(tokens(), parser, result));
    return {
      ...result,
      calls: result.toolCalls?.map(({ function: { name, arguments: json } }) => [name, JSON.parse(json as string)]),
    };
  }

  it('is recognized', () => expect(detectAnswerFormat(source)).toMatchObject({ toolCalls: format, takesTools: true }));

  it('takes a call and its result back into the prompt', () =>
    expect(tokenizer.decode(prepare(answered).prompt)).toMatch(/weather[\s\S]*Oslo[\s\S]*Rain\./));

  it('has calls in free answers', async () => {
    const result = await answer(call);
    expect(result).toMatchObject({ finish: 'tool_calls', text: '', calls: [['weather', args]] });
    expect(result.reasoning).toBe(/Hm\./.exec(call)?.[0]);
    expect(await answer('It rains [today].')).toMatchObject({ finish: 'stop', text: 'It rains [today].' });
  });

  it('has calls that must be', async () => {
    expect((await answer(forced, { toolChoice: 'required' })).calls).toEqual([['weather', args]]);
    expect((await answer(forced, { toolChoice: { name: 'weather' } })).calls).toEqual([['weather', args]]);
    await expect(answer('It rains.', { toolChoice: 'required' })).rejects.toThrow('does not allow I');
    await expect(answer(forced.replace('3}', '"3"}'), { toolChoice: 'required' })).rejects.toThrow('does not allow');
  });
});
