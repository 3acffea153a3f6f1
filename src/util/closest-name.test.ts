import { expect, it } from 'vitest';
import { closestName } from './closest-name.ts';

const known = ['temperature', 'topK', 'topP', 'maxTokens', 'stop', 'seed', 'kv', 'kvMemory'];

it.each([
  ['max_tokens', 'maxTokens'],
  ['max-tokens', 'maxTokens'],
  ['MAXTOKENS', 'maxTokens'],
  ['temprature', 'temperature'],
  ['temperatuer', 'temperature'],
  ['top_k', 'topK'],
  ['stops', 'stop'],
  ['see', 'seed'],
  ['vk', 'kv'],
  ['banana', undefined],
  ['', undefined],
  ['x'.repeat(100_000), undefined],
])('closest to %s is %s', (name, expected) => expect(closestName(name, known)).toBe(expected));
