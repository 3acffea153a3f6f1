/** Proxies: Node takes them from the environment only if it is told to. */

interface Runtime {
  env: Record<string, string | undefined>;
  execArgv: readonly string[];
  version: string;
}

/** Why a proxy in the environment is not in use, and what to do; empty if there is none, or if it is. */
export function unusedProxyNotice(endpoint: string, { env, execArgv, version }: Runtime = process): string {
  const names = endpoint.startsWith('https:') ? ['https_proxy', 'HTTPS_PROXY'] : ['http_proxy', 'HTTP_PROXY'];
  const set = names.find(name => env[name]);
  if (set === undefined) return '';
  const [major, minor] = version.slice(1).split('.').map(Number);
  const knowsProxies = major >= 24 || (major === 22 && minor >= 21);
  const isTold =
    env.NODE_USE_ENV_PROXY === '1' ||
    execArgv.includes('--use-env-proxy') ||
    (env.NODE_OPTIONS ?? '').split(/\s+/).includes('--use-env-proxy');
  if (knowsProxies && isTold) return '';
  const update = knowsProxies ? '' : ` with Node 24 or later (this is ${version})`;
  return ` ${set} is set and not in use: set NODE_USE_ENV_PROXY=1${update}.`;
}
