// Compiles src/ to dist/, from nothing: a file whose source is gone must not stay behind and be packed.
import { spawnSync } from 'node:child_process';
import { chmodSync, rmSync } from 'node:fs';

rmSync('dist', { recursive: true, force: true });
const { status } = spawnSync('tsc -p tsconfig.build.json', { stdio: 'inherit', shell: true });
if (status !== 0) process.exit(1);
chmodSync('dist/cli/main.js', 0o755);
