/** The shape of the house: imports point down the layers, never up, and never in a circle. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

/** Lowest first. A file may import its own layer and those before it; errors.ts is below them all. */
const LAYERS = [
  'errors.ts',
  'describe.ts',
  'nearest.ts',
  'disposable.ts',
  'event-loop.ts',
  'units.ts',
  'kernel',
  'codec',
  'cache',
  'model',
  'plan',
  'engine',
  'eval',
  'calibrate',
  'server',
  'cli',
  'index.ts',
];

type Graph = Map<string, string[]>;

const src = fileURLToPath(new URL('../src', import.meta.url));

/** Source files (tests left out) and what they import, as paths below src/. */
function readGraph(): Graph {
  const files = readdirSync(src, { recursive: true, encoding: 'utf8' }).filter(
    name => name.endsWith('.ts') && !/\.(test|case)\.ts$/.test(name),
  );
  return new Map(
    files.map(file => {
      const text = readFileSync(join(src, file), 'utf8');
      const imports = [...text.matchAll(/(?:from|import\()\s*'(\.[^']+)'/g)].map(([, target]) =>
        relative(src, join(src, dirname(file), target)),
      );
      return [file, imports];
    }),
  );
}

const layerOf = (file: string) => LAYERS.indexOf(file.split('/')[0]);

function upward(graph: Graph): string[] {
  return [...graph].flatMap(([file, imports]) =>
    imports.filter(target => layerOf(target) > layerOf(file)).map(target => `${file} -> ${target}`),
  );
}

function circles(graph: Graph): string[] {
  const found: string[] = [];
  const done = new Set<string>();
  const walk = (file: string, path: string[]) => {
    if (path.includes(file)) found.push([...path.slice(path.indexOf(file)), file].join(' -> '));
    if (done.has(file) || path.includes(file)) return;
    for (const target of graph.get(file) ?? []) walk(target, [...path, file]);
    done.add(file);
  };
  for (const file of graph.keys()) walk(file, []);
  return found;
}

describe('the house', () => {
  const graph = readGraph();

  it('is found, and every file has a layer', () => {
    expect(graph.size).toBeGreaterThan(20);
    expect([...graph.keys()].filter(file => layerOf(file) < 0)).toEqual([]);
    expect([...graph.values()].flat().filter(target => !graph.has(target))).toEqual([]);
  });

  it('has no import that points up', () => expect(upward(graph)).toEqual([]));

  it('has no circle of imports', () => expect(circles(graph)).toEqual([]));
});

it('a wrong house would be noticed', () => {
  const wrong: Graph = new Map([
    ['kernel/a.ts', ['codec/b.ts']],
    ['codec/b.ts', ['kernel/a.ts']],
  ]);
  expect(upward(wrong)).toEqual(['kernel/a.ts -> codec/b.ts']);
  expect(circles(wrong)).toEqual(['kernel/a.ts -> codec/b.ts -> kernel/a.ts']);
});
