/** All temporary files of a run are in one folder, which is removed at its end, also what a test that failed left behind. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const NAME = 'kvasir-tests-';

export default function setup(): (() => void) | undefined {
  // It is called once per project.
  if (tmpdir().includes(NAME)) return undefined;
  const folder = mkdtempSync(join(tmpdir(), NAME));
  // Before the processes of the tests start: they inherit it.
  process.env.TMPDIR = folder;
  return () => rmSync(folder, { recursive: true, force: true });
}
