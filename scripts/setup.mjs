// Installs dependencies and builds dist/, if needed, with nothing but Node. `npm start` and `npm test` run it first, so
// that a fresh clone needs no `npm install`. As `prepare` it also runs before `npm pack` and when npm installs Kvasir
// from a clone or a git URL: both need dist/, which is not in git.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const fromRoot = path => join(root, path);

const [major] = process.versions.node.split('.').map(Number);
if (major < 20) fail(`Kvasir needs Node 20 or newer; this is ${process.version}. Install a newer Node and run again.`);

// Not `npm ci`: it rejects a lock file without other platforms' optional binaries, which some mirrors lack.
step('installing dependencies', 'node_modules/.kvasir-installed', ['package.json', 'package-lock.json'], 'npm', [
  'install',
  '--no-save',
  '--no-audit',
  '--no-fund',
  // No dependency needs its install script, and our own `prepare` would run this file again.
  '--ignore-scripts',
  // The npm that runs this file passes its options on: `npm install -g ../kvasir`, `npm pack --dry-run --json`.
  '--global=false',
  '--dry-run=false',
  '--json=false',
  '--package-lock-only=false',
  '--include=dev',
]);
step(
  'building dist/',
  'dist/.kvasir-built',
  ['src', 'web', 'package.json', 'package-lock.json', 'tsconfig.json', 'tsconfig.build.json', 'scripts/build.mjs'],
  'npm',
  ['run', '--silent', 'build'],
);

/** Runs a command unless its stamp file shows that it already ran on the same inputs. */
function step(what, stamp, inputs, command, args) {
  const key = hash(inputs);
  if (existsSync(fromRoot(stamp)) && readFileSync(fromRoot(stamp), 'utf8') === key) return;
  const started = Date.now();
  console.error(`kvasir: ${what} (${[command, ...args].join(' ')})`);
  // A shell, because npm is a .cmd file on Windows; all arguments are constants. Output goes to stderr, so that
  // `npm start -- --json` prints only JSON on stdout.
  const run = spawnSync([command, ...args].join(' '), { cwd: root, stdio: ['ignore', 2, 2], shell: true });
  if (run.status !== 0) fail(`${what} failed; see the output above. Fix the problem and run the command again.`);
  mkdirSync(join(fromRoot(stamp), '..'), { recursive: true });
  writeFileSync(fromRoot(stamp), key);
  console.error(`kvasir: done in ${((Date.now() - started) / 1000).toFixed(1)} s`);
}

function hash(paths) {
  const sum = createHash('sha256');
  const add = path => {
    if (!existsSync(fromRoot(path))) return;
    if (statSync(fromRoot(path)).isDirectory())
      for (const name of readdirSync(fromRoot(path)).sort()) add(`${path}/${name}`);
    else sum.update(`${path}\0`).update(readFileSync(fromRoot(path)));
  };
  paths.forEach(add);
  return sum.digest('hex');
}

function fail(message) {
  console.error(`kvasir: ${message}`);
  process.exit(1);
}
