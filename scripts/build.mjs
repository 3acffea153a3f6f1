// Compiles src/ to an empty dist/, so that outputs of deleted sources are not packed, and builds the web app in dist/web.
import { spawnSync } from 'node:child_process';
import { chmodSync, rmSync } from 'node:fs';

rmSync('dist', { recursive: true, force: true });
for (const command of ['tsc -p tsconfig.build.json', 'vite build web --logLevel warn']) {
  const { status } = spawnSync(command, { stdio: 'inherit', shell: true });
  if (status !== 0) process.exit(1);
}
chmodSync('dist/cli/main.js', 0o755);
