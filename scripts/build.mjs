// Compiles src/ to an empty dist/, so that outputs of deleted sources are not packed.
import { spawnSync } from 'node:child_process';
import { chmodSync, rmSync } from 'node:fs';

rmSync('dist', { recursive: true, force: true });
const { status } = spawnSync('tsc -p tsconfig.build.json', { stdio: 'inherit', shell: true });
if (status !== 0) process.exit(1);
chmodSync('dist/cli/main.js', 0o755);
