/** An empty project with the packed package installed, as after `npm install kvasir`. */
import { execFileSync, spawn } from 'node:child_process';
import { copyFileSync, mkdtempSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const root = fileURLToPath(new URL('../..', import.meta.url));

export interface Project {
  folder: string;
  /** Paths in the tarball. */
  files: string[];
  /** Bytes of the tarball, of its contents, and of all of node_modules. */
  packed: number;
  unpacked: number;
  installed: number;
  seconds: number;
}

/** Runs npm; on Windows it is a .cmd file, which needs a shell. */
export const npm = (cwd: string, ...args: string[]): string =>
  execFileSync('npm', args, {
    cwd,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
    shell: process.platform === 'win32',
  });

/** Needs dist/, which `npm test` builds. */
export function createProject(): Project {
  const folder = mkdtempSync(join(tmpdir(), 'kvasir-project-'));
  const [pack] = JSON.parse(npm(root, 'pack', '--ignore-scripts', '--json', '--pack-destination', folder));
  writeFileSync(join(folder, 'package.json'), JSON.stringify({ private: true, type: 'module' }));
  const started = Date.now();
  npm(folder, 'install', '--prefer-offline', '--no-audit', '--no-fund', `./${pack.filename}`);
  const seconds = (Date.now() - started) / 1000;
  // Files that the README's snippets read.
  copyFileSync(join(root, 'models/mimir.gguf'), join(folder, 'model.gguf'));
  copyFileSync(join(root, 'docs/kernels.md'), join(folder, 'wiki.valid.txt'));
  copyFileSync(join(root, 'LICENSE'), join(folder, 'report.txt'));
  return {
    folder,
    files: pack.files.map(({ path }: { path: string }) => path),
    packed: pack.size,
    unpacked: pack.unpackedSize,
    installed: bytesBelow(join(folder, 'node_modules')),
    seconds,
  };
}

const bytesBelow = (folder: string): number =>
  readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter(entry => entry.isFile())
    .reduce((sum, { parentPath, name }) => sum + statSync(join(parentPath, name)).size, 0);

/** Runs a shell command in the project, with empty model caches. */
export function runLine({ folder }: Project, line: string, input = '') {
  const env = { ...process.env, HF_HUB_CACHE: join(folder, 'hub'), KVASIR_CACHE: join(folder, 'cache') };
  const child = spawn(line, { cwd: folder, env, shell: true });
  let printed = '';
  for (const output of [child.stdout, child.stderr])
    output.setEncoding('utf8').on('data', (text: string) => {
      printed += text;
    });
  child.stdin.end(input);
  return new Promise<{ status: number | null; printed: string }>(resolve => {
    child.on('close', status => resolve({ status, printed }));
  });
}

/** The code blocks in these languages of the README, and of the page that has its commands on codecs. */
export const readmeBlocks = (...languages: string[]): string[] =>
  [
    ...['README.md', 'docs/codecs.md']
      .map(page => readFileSync(join(root, page), 'utf8'))
      .join('\n')
      .matchAll(/^```(\w+)\n([\s\S]*?)^```$/gm),
  ]
    .filter(([, language]) => languages.includes(language))
    .map(([, , code]) => code);
