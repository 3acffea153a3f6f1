/** Imports point down the layers, never up, and never in a cycle. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, it } from 'vitest';

/** Lowest first. A file may import its own layer and those before it. */
const LAYERS = [
  'util',
  'platform',
  'kernel',
  'codec',
  'store',
  'eviction',
  'cache',
  'hub',
  'model',
  'plan',
  'hub.ts',
  'hub-browser.ts',
  'engine',
  'session',
  'chat',
  'api',
  'vectors',
  'ai-sdk',
  'eval',
  'calibrate',
  'eval.ts',
  'worker',
  'server',
  'cli',
  'index.ts',
  'renamed',
];

type Graph = Map<string, string[]>;

const src = fileURLToPath(new URL('../src', import.meta.url));

/** Source files without tests, and what they import, as paths relative to src/. */
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

function upwardImports(graph: Graph): string[] {
  return [...graph].flatMap(([file, imports]) =>
    imports.filter(target => layerOf(target) > layerOf(file)).map(target => `${file} -> ${target}`),
  );
}

function cycles(graph: Graph): string[] {
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

describe('src/', () => {
  const graph = readGraph();

  it('has a layer for every file, and every import exists', () => {
    expect(graph.size).toBeGreaterThan(20);
    expect([...graph.keys()].filter(file => layerOf(file) < 0)).toEqual([]);
    expect([...graph.values()].flat().filter(target => !graph.has(target))).toEqual([]);
  });

  it('has no import that points up', () => expect(upwardImports(graph)).toEqual([]));

  it('has no import cycle', () => expect(cycles(graph)).toEqual([]));
});

it('finds an upward import and a cycle', () => {
  const wrong: Graph = new Map([
    ['kernel/a.ts', ['codec/b.ts']],
    ['codec/b.ts', ['kernel/a.ts']],
  ]);
  expect(upwardImports(wrong)).toEqual(['kernel/a.ts -> codec/b.ts']);
  expect(cycles(wrong)).toEqual(['kernel/a.ts -> codec/b.ts -> kernel/a.ts']);
});
