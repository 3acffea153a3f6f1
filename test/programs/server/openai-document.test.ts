/** Answers, errors and every event against the schemas of OpenAI's published OpenAPI document. */
import { Ajv2020 } from 'ajv/dist/2020.js';
import { expect, it } from 'vitest';
import document from '../../fixtures/openai/schemas.json' with { type: 'json' };
import { openaiAnswers } from '../../support/openai-types.ts';
import { type Json, openServer } from './tiny-server.ts';

const SCHEMAS: Record<string, string> = {
  Chat: 'CreateChatCompletionResponse',
  ChatChunk: 'CreateChatCompletionStreamResponse',
  Completion: 'CreateCompletionResponse',
  CompletionChunk: 'CreateCompletionResponse',
  Whole: 'Response',
  ResponseEvent: 'ResponseStreamEvent',
  Failure: 'ErrorResponse',
};

const { ask, json } = await openServer();
const ajv = new Ajv2020({ strict: false, validateFormats: false, allErrors: true });
ajv.addSchema(document, 'openai');

/** The first things that are wrong, as text. */
function problems(schema: string, value: Json): string {
  const validate = ajv.getSchema(`openai#/components/schemas/${schema}`);
  if (!validate) throw new Error(`The document has no schema ${schema}.`);
  if (validate(value)) return '';
  return `${ajv.errorsText(validate.errors?.slice(0, 5))} in ${JSON.stringify(value).slice(0, 500)}`;
}

/** The document has one schema for whole completions and chunks. OpenAI's own chunks have these nulls. */
function withoutNulls({ usage, choices, ...chunk }: Json): Json {
  const known = choices.map(({ finish_reason: reason, ...choice }: Json) => ({
    ...choice,
    finish_reason: reason ?? 'stop',
  }));
  return { ...chunk, choices: known, ...(usage && { usage }) };
}

it('satisfy them; with a field of another type they would not', async () => {
  const answers = await openaiAnswers(ask);
  expect(new Set(answers.map(({ type }) => type))).toEqual(new Set(Object.keys(SCHEMAS)));
  const found = answers.map(({ type, value }) =>
    problems(SCHEMAS[type], type === 'CompletionChunk' ? withoutNulls(value) : value),
  );
  expect(found.filter(text => text !== '')).toEqual([]);
  for (const { type, value } of answers) {
    const [first, ...rest] = Object.entries(value).filter(([name]) => name !== 'usage');
    const changed = { ...Object.fromEntries(rest), [first[0]]: [null] };
    expect(problems(SCHEMAS[type], changed), `${type} with another ${first[0]}`).not.toBe('');
  }
});

it('so does the list of models', async () => {
  expect(problems('ListModelsResponse', await json('/v1/models'))).toBe('');
});
