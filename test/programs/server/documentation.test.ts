/** docs/server.md has every option, variable, route, limit and metric that there is, and no other. */
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { defaultLimits } from '../../../src/server/limits.ts';
import { routes } from '../../../src/server/routes.ts';
import { formatCount } from '../../../src/util/units.ts';
import { kvasir } from '../../support/command.ts';
import { openServer } from './tiny-server.ts';

const page = readFileSync(new URL('../../../docs/server.md', import.meta.url), 'utf8');
const section = (title: string): string => {
  const start = page.indexOf(`\n## ${title}\n`);
  expect(start, title).toBeGreaterThan(0);
  return page.slice(start, page.indexOf('\n## ', start + 1) >>> 0);
};

it('options and their variables', async () => {
  const { stdout } = await kvasir(['serve', '--help']);
  const options = stdout.split(/\n {2}(?=--)/).slice(1);
  const shown = options.map(text => `${text.match(/^--[\w-]+/)} ${text.match(/env:\s+(\w+)/)?.[1]}`);
  const documented = [...section('Options').matchAll(/^\| `(--[\w-]+).*?` +\| `(\w+)`/gm)];
  expect(documented.map(([, option, variable]) => `${option} ${variable}`).sort()).toEqual(shown.sort());
});

it('routes', () => {
  const listed = [...section('Routes').matchAll(/^\| `(GET|POST|DELETE) (\S+)`/gm)].map(([, ...route]) =>
    route.join(' '),
  );
  const served = routes.map(({ method, path }) => `${method.toUpperCase()} ${path.replace(/:id.*/, 'ID')}`);
  expect(listed.sort()).toEqual([...served, 'GET /', 'GET /openapi.json'].sort());
});

it('limits', () => {
  const { messages, tools, choices, stops, stopLength, depth, values } = defaultLimits;
  const text = section('Limits').replace(/\s+/g, ' ');
  for (const limit of [
    `${formatCount(messages)} messages, ${tools} tools, ${choices} answers`,
    `${stops} stop strings of ${formatCount(stopLength)} characters`,
    `${depth} levels and ${formatCount(values)} values`,
  ])
    expect(text).toContain(limit);
});

it('metrics', async () => {
  const { ask } = await openServer();
  const text = await (await ask('/metrics')).text();
  const names = [...text.matchAll(/^# TYPE (\S+)/gm)].map(([, name]) => name);
  const named = [...section('Metrics').matchAll(/`((?:vllm:|kvasir_)\w+)`/g)].map(([, name]) => name);
  expect(named.sort()).toEqual(names.sort());
});
