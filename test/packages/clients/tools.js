/** What every client's script uses: an address, a tool, a schema, and how to check them. */
import assert from 'node:assert/strict';

/** Of the server, without /v1. */
export const url = process.env.KVASIR_URL;
export const apiKey = process.env.KVASIR_KEY;
export const model = 'smol';

export const question = 'What is the weather in Oslo for the next days?';
export const cities = ['Oslo', 'Rome', 'Lima', 'Cairo'];

export const weatherSchema = {
  type: 'object',
  properties: {
    city: { type: 'string', enum: cities },
    days: { type: 'integer', minimum: 1, maximum: 9 },
  },
  required: ['city', 'days'],
  additionalProperties: false,
};

export const weather = { name: 'weather', description: 'The weather in a city', parameters: weatherSchema };

/** Throws unless the value follows the schema; returns it. */
export function checkWeather(value) {
  assert.deepEqual(Object.keys(value).sort(), ['city', 'days']);
  assert.ok(cities.includes(value.city), `a city: ${value.city}`);
  assert.ok(Number.isInteger(value.days) && value.days >= 1 && value.days <= 9, `days: ${value.days}`);
  return value;
}

export const report = ({ city, days }) => `${city}: sun for ${days} days. Ask about another city.`;

/** Calls in a row of an agent: ten through one of the clients, and a few through the others. */
export const CALLS = Number(process.env.KVASIR_CALLS);
