import { expect, it } from 'vitest';
import { nearest } from './nearest.ts';

const known = ['run', 'chat', 'list', 'estimate', 'maxTokens'];

it.each([
  ['rnu', 'run'],
  ['Run', 'run'],
  ['lst', 'list'],
  ['esitmate', 'estimate'],
  ['max_tokens', 'maxTokens'],
  ['zzz', undefined],
  ['', undefined],
])('%s: %s', (name, expected) => expect(nearest(name, known)).toBe(expected));

it('nothing is near where nothing is known', () => expect(nearest('run', [])).toBeUndefined());
