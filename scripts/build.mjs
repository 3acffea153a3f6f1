// Compiles src/ to an empty dist/, so that outputs of deleted sources are not packed, bundles it for browsers, and builds
// the web app.
import { spawnSync } from 'node:child_process';
import { chmodSync, rmSync } from 'node:fs';
import { build } from 'esbuild';

rmSync('dist', { recursive: true, force: true });
for (const command of ['tsc -p tsconfig.build.json', 'vite build web --logLevel warn']) {
  const { status } = spawnSync(command, { stdio: 'inherit', shell: true });
  if (status !== 0) process.exit(1);
}
chmodSync('dist/cli/main.js', 0o755);

// For pages without a bundler: <script type="module">.
await build({
  entryPoints: {
    kvasir: 'dist/index.js',
    worker: 'dist/worker/index.js',
    'engine-worker': 'dist/worker/engine-worker.js',
  },
  outdir: 'dist/browser',
  bundle: true,
  splitting: true,
  minify: true,
  format: 'esm',
  platform: 'browser',
  chunkNames: 'chunk-[hash]',
});
