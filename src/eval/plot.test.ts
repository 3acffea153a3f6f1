import { expect, it } from 'vitest';
import { divergencePlot, wrap } from './plot.ts';

const subtitle =
  '2,048 tokens per row, scored from 1,024; wasm (SIMD and threads); no webgpu: the package "webgpu" is not installed, ' +
  'so that a GPU cannot be used from Node, only from a browser';

it('a long subtitle wraps, and the plot moves down', () => {
  const svg = divergencePlot([], { title: 'A model', subtitle });
  const notes = [...svg.matchAll(/class="note" x="84" y="(\d+)">([^<]*)</g)];
  expect(notes.map(([, y]) => Number(y))).toEqual([45, 60]);
  expect(notes.map(([, , text]) => text.replaceAll('&quot;', '"')).join(' ')).toBe(subtitle);
  for (const [, , text] of notes) expect(text.length).toBeLessThan(120);
  expect(svg).toContain('viewBox="0 0 860 555"');
  expect(svg).toContain('<g transform="translate(0 15)">');
});

it('labels at the right edge stay inside', () => {
  const row = { kld: 0.1, top1: 0.9, perplexity: 9, window: { sink: 4, recent: 0, edge: 0 }, tokens: 1 };
  const svg = divergencePlot([{ ...row, kv: 'kivi4g32+sink4+recent128', bits: 5 }], { title: '', subtitle: '' });
  expect(svg).toMatch(/class="name end" x="(\d+)"/);
});

it.each([
  ['', 5, ['']],
  ['a bc def', 4, ['a bc', 'def']],
  ['abcdefgh', 3, ['abc', 'def', 'gh']],
])('wraps %j at %i', (text, maxChars, lines) => expect(wrap(text, maxChars)).toEqual(lines));
