/** Heat maps as text, SVG and HTML. */
import { expect, it } from 'vitest';
import { heatmapPage, heatmapPlot, heatmapText } from './heatmap.ts';
import { countAnswers, type NeedleRow } from './measure.ts';

const cells = [
  { length: 1000, depth: 0.25, right: 4, asked: 4 },
  { length: 1000, depth: 0.75, right: 3, asked: 4 },
  { length: 2000, depth: 0.25, right: 0, asked: 4 },
  { length: 2000, depth: 0.75, right: 0, asked: 0 },
];
const rows: NeedleRow[] = [{ kv: 'tq2', bits: 2.25, ...countAnswers(cells), cells }];

it('prints numbers, or shades for a terminal', () => {
  expect(heatmapText(rows, false).split('\n')).toEqual([
    'tq2, 2.250 bits: 58.3 % of 12 facts',
    ' depth   25  75',
    ' 1,000  100  75  87.5 %',
    ' 2,000    0   ·  0.0 %',
  ]);
  expect(heatmapText(rows, true).split('\n').slice(2)).toEqual([' 1,000  ███ ▓▓▓  87.5 %', ' 2,000        ·  0.0 %']);
});

it('draws a labeled box for every cell', () => {
  const svg = heatmapPlot(rows, { title: 'A <model>', subtitle: 'two lengths' });
  expect(svg).toMatch(/^<svg[\s\S]*A &lt;model&gt;[\s\S]*<\/svg>\n$/);
  expect(svg.match(/<rect [^>]*fill="hsl/g)).toHaveLength(3);
  expect(svg).toContain('<title>1,000 tokens, 75 % deep: 3 of 4</title>');
  expect(heatmapPage(rows, { title: 'Mimir', subtitle: '' })).toMatch(
    /^<!doctype html>[\s\S]*<td>58\.3 %<\/td>[\s\S]*<svg/,
  );
});
