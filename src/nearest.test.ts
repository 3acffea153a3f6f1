import { expect, it } from 'vitest';
import { nearest } from './nearest.ts';

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
])('%s is %s', (name, meant) => expect(nearest(name, known)).toBe(meant));
