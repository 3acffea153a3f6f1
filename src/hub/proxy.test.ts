import { expect, test } from 'vitest';
import { unusedProxyNotice } from './proxy.ts';

const hub = 'https://huggingface.co';
const proxy = { HTTPS_PROXY: 'http://proxy:3128' };
const notice = (env: Record<string, string>, version = 'v24.1.0', execArgv: string[] = [], endpoint = hub) =>
  unusedProxyNotice(endpoint, { env, version, execArgv });

test('a proxy that Node does not use has a notice', () => {
  expect(notice(proxy)).toBe(' HTTPS_PROXY is set and not in use: set NODE_USE_ENV_PROXY=1.');
  expect(notice({ https_proxy: 'x', NODE_USE_ENV_PROXY: '0' })).toMatch(/^ https_proxy is set/);
  expect(notice({ HTTP_PROXY: 'x' }, 'v24.1.0', [], 'http://mirror')).toMatch(/^ HTTP_PROXY is set/);
  for (const version of ['v20.20.2', 'v22.20.0', 'v23.11.0'])
    expect(notice({ ...proxy, NODE_USE_ENV_PROXY: '1' }, version)).toBe(
      ` HTTPS_PROXY is set and not in use: set NODE_USE_ENV_PROXY=1 with Node 24 or later (this is ${version}).`,
    );
});

test('there is none without a proxy, and for one that is used', () => {
  expect(notice({})).toBe('');
  expect(notice({ HTTP_PROXY: 'x' })).toBe('');
  expect(notice({ ...proxy, NODE_USE_ENV_PROXY: '1' })).toBe('');
  expect(notice({ ...proxy, NODE_USE_ENV_PROXY: '1' }, 'v22.21.0')).toBe('');
  expect(notice({ ...proxy, NODE_OPTIONS: '--use-env-proxy' })).toBe('');
  expect(notice(proxy, 'v24.5.0', ['--use-env-proxy'])).toBe('');
});
