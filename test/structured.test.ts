/**
 * Structured output, tools and reasoning with real models. The soak over all schemas runs with KVASIR_ALL; what a token
 * costs is counted in src/engine/grammar/automaton.test.ts.
 */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { describe, expect, it } from 'vitest';
import { type ChatMessage, InputError, loadModel, type Model, type Tool } from '../src/index.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { ALL_CASES, itAll, LONG_CASES } from './support/matrix.ts';
import { mimir } from './support/mimir.ts';
import { schemas } from './support/schemas.ts';
import { describeWithFile, smolModel } from './support/shared.ts';
import { tinyModel } from './support/tiny-model.ts';

const ajv = new Ajv2020({
  // 1.12 / 0.01 is not quite 112 in floating point.
  multipleOfPrecision: 9,
  strict: false,
  formats: {
    date: true,
    time: true,
    'date-time': true,
    uuid: true,
    ipv4: true,
    hostname: true,
    email: true,
    uri: true,
  },
});
const ask: ChatMessage[] = [{ role: 'user', content: 'Answer in JSON.' }];
const tool = (name: string, properties: Record<string, unknown>): Tool => ({
  type: 'function',
  function: {
    name,
    description: `Calls ${name}`,
    parameters: { type: 'object', properties, required: Object.keys(properties) },
  },
});
const tools = [
  tool('get_weather', { city: { type: 'string', maxLength: 20 } }),
  tool('add', { a: { type: 'integer' }, b: { type: 'integer' } }),
];

async function checkSchema(model: Model, schema: Record<string, unknown>, seed: number): Promise<string> {
  const { text, finish } = await model.complete(ask, { schema, temperature: 1, seed, maxTokens: 60 });
  if (finish === 'length') return finish;
  const validate = ajv.compile(schema);
  expect(validate(JSON.parse(text)), `${text}: ${ajv.errorsText(validate.errors)}`).toBe(true);
  return finish;
}

describe('a tiny model with random weights', () => {
  it('satisfies schemas in every call that takes one', async () => {
    await using model = await loadModel(new Blob([writeGguf(tinyModel({ layers: 1 }))]), { device: 'js' });
    const schema = { type: 'array', items: { enum: [1, 'b', null] }, minItems: 1, maxItems: 3 };
    const validate = ajv.compile(schema);
    const options = { schema, temperature: 1, seed: 3, maxTokens: 60 };
    const results = [
      await model.generate('x', options).result(),
      await model.chat(ask, options).result(),
      await model.conversation().send('Hi', options).result(),
      ...(await model.samples(ask, 4, options)),
    ];
    for (const { text, finish } of results) {
      expect(finish).toBe('stop');
      expect(validate(JSON.parse(text)), text).toBe(true);
    }
  });

  it('biases logits', async () => {
    await using model = await loadModel(new Blob([writeGguf(tinyModel({ layers: 1 }))]), { device: 'js' });
    const { ids } = await model.complete('x', { logitBias: { 65: 100 }, temperature: 0, maxTokens: 4 });
    expect(ids).toEqual([65, 65, 65, 65]);
    await expect(model.complete('x', { logitBias: { 70000: 1 } })).rejects.toThrow(
      /logitBias has the token 70000; ids are 0 to \d+\./,
    );
  });

  it('refuses what it cannot follow before any work', async () => {
    await using model = await loadModel(new Blob([writeGguf(tinyModel({ layers: 1 }))]), { device: 'js' });
    expect(() => model.chat(ask, { schema: { type: 'array', uniqueItems: true } })).toThrow(/schema\.uniqueItems/);
    expect(() => model.generate('x', { schema: true, ignoreEos: true })).toThrow(InputError);
    expect(() => model.chat(ask, { tools, toolChoice: { name: 'other' } })).toThrow(/get_weather, add/);
    expect(() => model.chat(ask, { toolChoice: 'required' })).toThrow(/no tools/);
    const { function: even } = tool('f', { a: { multipleOf: 2 } });
    expect(() => model.chat(ask, { tools: [{ type: 'function', function: { ...even, strict: true } }] })).toThrow(
      /tools\[0\]\.function\.parameters\.properties\.a\.multipleOf/,
    );
    expect(() => model.chat(ask, { tools: [tool('<|end|>', {})] })).toThrow(/function\.name/);
  });

  it('follows what it can of tools that are not strict, and says what it does not', async () => {
    await using model = await loadModel(new Blob([writeGguf(tinyModel({ layers: 1 }))]), {
      device: 'wasm',
      context: 1024,
    });
    const { toolCalls, notices } = await model.complete(ask, {
      tools: [tool('f', { a: { type: 'integer', minimum: 1, maximum: 9, multipleOf: 2 } })],
      toolChoice: 'required',
      maxTokens: 200,
      seed: 1,
    });
    expect(JSON.parse(toolCalls![0].function.arguments as string).a).toSatisfy((a: number) => a >= 1 && a <= 9);
    expect(notices).toEqual([
      'Calls need not satisfy tools[0].function.parameters.properties.a.multipleOf: check their arguments.',
    ]);
  });

  it('separates reasoning that the template opens: it is no part of the JSON', async () => {
    const source = "{# </think> #}{{ messages[0].content }}{% if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}";
    const file = writeGguf(tinyModel({ layers: 1, metadata: { 'tokenizer.chat_template': source } }));
    await using model = await loadModel(new Blob([file]), { device: 'js' });
    const { finish, reasoning, text } = await model.complete(ask, {
      schema: { enum: [1, 2] },
      maxTokens: 40,
      seed: 1,
      temperature: 10,
    });
    expect({ finish, text }).toEqual({ finish: 'length', text: '' });
    expect(reasoning).toMatch(/\S/);
  });

  it('streams calls: the name first, then the arguments, with all tokens', async () => {
    await using model = await loadModel(new Blob([writeGguf(tinyModel({ layers: 1 }))]), {
      device: 'wasm',
      context: 1024,
    });
    const stream = model.answer(ask, { tools, toolChoice: { name: 'add' }, temperature: 1, seed: 1, maxTokens: 200 });
    const ids: number[] = [];
    let [names, json] = [0, ''];
    for await (const { toolCalls = [], tokens } of stream) {
      ids.push(...tokens.map(token => token.id));
      for (const { name, id, arguments: more = '' } of toolCalls) {
        if (name !== undefined) names++;
        expect(id !== undefined).toBe(name !== undefined);
        json += more;
      }
    }
    const { toolCalls, text, finish, ids: all } = await stream.result();
    expect({ names, text, finish }).toEqual({ names: 1, text: '', finish: 'tool_calls' });
    expect(ids).toEqual(all);
    expect(toolCalls).toEqual([
      { id: expect.stringMatching(/^call_\w{24}$/), type: 'function', function: { name: 'add', arguments: json } },
    ]);
    expect(Object.keys(JSON.parse(json))).toEqual(['a', 'b']);
  });
});

/** Checks every n-th schema, all in one batch; most answers must end before they are cut. */
async function checkSchemas(model: Model, every: number): Promise<void> {
  const chosen = schemas.filter((_, i) => i % every === 0);
  const finishes = await Promise.all(chosen.map((schema, i) => checkSchema(model, schema, i)));
  expect(finishes.filter(finish => finish === 'stop').length).toBeGreaterThan(chosen.length / 2);
}

it(`Mimir satisfies ${ALL_CASES ? 'every schema' : 'a dozen schemas'}`, { timeout: 120_000 }, async () => {
  await using model = await loadModel(mimir, { context: 512 });
  await checkSchemas(model, ALL_CASES ? 1 : 16);
});

describeWithFile(smolModel, 'SmolLM2', path => {
  itAll(`satisfies every ${LONG_CASES ? '' : 'twelfth '}schema`, { timeout: 900_000 }, async () => {
    await using model = await loadModel(path, { context: 512 });
    await checkSchemas(model, LONG_CASES ? 1 : 12);
  });

  // test/packages/clients.all.test.ts calls them ten times in a row.
  const CALLS = LONG_CASES ? 10 : 5;
  itAll(`calls tools ${CALLS} times in a row, all well formed`, { timeout: 300_000 }, async () => {
    await using model = await loadModel(path, { context: 2048 });
    const messages: ChatMessage[] = [
      { role: 'user', content: 'What is the weather in Oslo, Rome and Paris? Use the tools.' },
    ];
    for (let step = 0; step < CALLS; step++) {
      const toolChoice = step % 2 ? 'required' : { name: tools[step % 4 ? 1 : 0].function.name };
      const { toolCalls = [], finish } = await model.complete(messages, {
        tools,
        toolChoice,
        temperature: 0,
        maxTokens: 100,
      });
      expect(toolCalls.length).toBeGreaterThan(0);
      const whole = finish === 'tool_calls' ? toolCalls : toolCalls.slice(0, -1);
      for (const { function: called } of whole) {
        const { parameters } = tools.find(({ function: { name } }) => name === called.name)!.function;
        expect(ajv.validate(parameters!, JSON.parse(called.arguments as string)), JSON.stringify(called)).toBe(true);
      }
      messages.push({ role: 'assistant', content: null, tool_calls: whole.slice(0, 1) });
      messages.push({ role: 'tool', content: '{"result": 21}', tool_call_id: whole[0]?.id });
    }
  });
});
