import fc from 'fast-check';
import { expect, it } from 'vitest';
import { axisTicks, layerPlot } from './layer-plot.ts';
import { divergencePlot, paretoFront, wrap } from './plot.ts';

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

it('every point and its label stay inside the frame, also in a crowd', () => {
  const point = fc.record({
    kv: fc.constantFrom('tq2', 'oscar2g32-scale', 'kivi2g32/tq3', 'vec-d4b8-own'),
    bits: fc.double({ min: 0.5, max: 16, noNaN: true }),
    kld: fc.double({ min: 1e-7, max: 5, noNaN: true }),
    top1: fc.constant(0.9),
  });
  fc.assert(
    fc.property(fc.array(point, { minLength: 1, maxLength: 40 }), points => {
      const svg = divergencePlot(points, { title: '', subtitle: '' });
      const height = Number(svg.match(/viewBox="0 0 860 (\d+)"/)![1]);
      const labels = [...svg.matchAll(/class="name (start|end)" x="([\d.]+)" y="([\d.]+)">([^<]*)</g)];
      expect(labels).toHaveLength(points.length);
      for (const [, side, x, y, name] of labels) {
        const left = side === 'start' ? Number(x) : Number(x) - 7 * name.length;
        expect(left).toBeGreaterThanOrEqual(0);
        expect(left + 7 * name.length).toBeLessThanOrEqual(860);
        expect(Number(y)).toBeGreaterThan(50);
        expect(Number(y)).toBeLessThan(height - 50);
      }
      expect(svg).not.toMatch(/NaN|Infinity|undefined/);
    }),
    { numRuns: 50 },
  );
});

it('the line goes through the points that none with as few bits is better than', () => {
  const points = [
    { bits: 2, kld: 0.2 },
    { bits: 2, kld: 0.3 },
    { bits: 3, kld: 0.25 },
    { bits: 4, kld: 0.1 },
  ];
  expect(paretoFront(points)).toEqual([points[0], points[3]]);
  const rows = points.map((point, i) => ({ ...point, kv: `codec${i}`, top1: 1 }));
  const svg = divergencePlot(rows, { title: '', subtitle: '' });
  expect(svg.match(/<polyline class="pareto" points="([^"]*)"/)![1].split(' ')).toHaveLength(2);
  expect(svg.match(/<circle[^>]*class="other"/g)).toHaveLength(2);
});

it('a layer plot has a legend, a scale with a unit, and a bar per layer and series', () => {
  const values = Array.from({ length: 30 }, (_, i) => i / 1000);
  const series = [
    { name: 'keys', values },
    { name: 'values', values: values.map(x => x / 2) },
  ];
  const svg = layerPlot(series, { title: 'model.gguf', subtitle: '', unit: 'nats per token' });
  expect(svg.match(/<rect class="bar\d"[^>]*><title>/g)).toHaveLength(60);
  for (const label of ['model.gguf', 'keys', 'values', 'nats per token', 'layer', '0', '0.03', '29'])
    expect(svg).toContain(`>${label}</text>`);
  expect(layerPlot([], { title: '', subtitle: '', unit: '' })).not.toMatch(/NaN|Infinity/);
});

it('axis ticks start at 0, are evenly spaced, few, and reach the maximum', () => {
  expect(axisTicks(0.029)).toEqual([0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03]);
  fc.assert(
    fc.property(fc.double({ min: 1e-6, max: 1e6, noNaN: true }), max => {
      const ticks = axisTicks(max);
      expect(ticks[0]).toBe(0);
      expect(ticks.length).toBeLessThanOrEqual(7);
      expect(ticks.at(-1)).toBeGreaterThanOrEqual(max * (1 - 1e-6));
      expect(ticks.at(-2)).toBeLessThan(max);
    }),
  );
});

it.each([
  ['', 5, ['']],
  ['a bc def', 4, ['a bc', 'def']],
  ['abcdefgh', 3, ['abc', 'def', 'gh']],
])('wraps %j at %i', (text, maxChars, lines) => expect(wrap(text, maxChars)).toEqual(lines));
