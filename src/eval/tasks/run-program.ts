/**
 * Runs Python programs that a model has written, with limits: time, memory, the size of files, an empty environment, a fresh
 * folder, and no network where the system can separate it. They can still read the files of the user: run them in a
 * container if the model is not trusted.
 */
import { execFile, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { UnsupportedError } from '../../util/errors.ts';

/** Whether the program ran to its end without an error. */
export type RunProgram = (program: string) => Promise<boolean>;

export interface ProgramRunner {
  run: RunProgram;
  /** What could not be limited. */
  notice?: string;
}

const SECONDS = 10;
const MEMORY_KIB = 2 ** 20;
const FILE_BLOCKS = 2 ** 15;
const MAX_OUTPUT = 64 * 1024;

const NO_NETWORK = ['unshare', '--map-root-user', '--net', '--'];

const execute = promisify(execFile);

/** Finds Python, and whether programs can run without network. */
export async function createProgramRunner(): Promise<ProgramRunner> {
  // The real path: a version manager's wrapper needs its environment.
  const python = await execute('python3', ['-c', 'import sys; print(sys.executable)']).then(
    ({ stdout }) => stdout.trim(),
    () => {
      throw new UnsupportedError('The programs of this task need python3, which was not found. Install it first.');
    },
  );
  const canSeparate = await execute(NO_NETWORK[0], [...NO_NETWORK.slice(1), 'true']).then(
    () => true,
    () => false,
  );
  const command = [...(canSeparate ? NO_NETWORK : []), python, '-I', 'program.py'];
  if (!(await runProgram(command, 'pass')))
    throw new UnsupportedError('The time and memory of programs cannot be limited on this system, so none are run.');
  return {
    run: program => runProgram(command, program),
    notice: canSeparate
      ? undefined
      : 'Programs run with access to the network: this system cannot separate it (`unshare --net`).',
  };
}

async function runProgram(command: readonly string[], program: string): Promise<boolean> {
  const folder = await mkdtemp(join(tmpdir(), 'kvasir-program-'));
  // A program that ends early does not get to print this.
  const passed = randomUUID();
  try {
    await writeFile(join(folder, 'program.py'), `${program}\nprint("\\n${passed}")\n`);
    return (await outputOf(command, folder)).trimEnd().endsWith(passed);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** What the command prints, at least its last part, until it ends or its time is over. */
function outputOf(command: readonly string[], folder: string): Promise<string> {
  // One by one: some shells take only one limit per call.
  const limits = [`-t ${SECONDS}`, `-v ${MEMORY_KIB}`, `-f ${FILE_BLOCKS}`, '-c 0'].map(limit => `ulimit ${limit}`);
  const script = [...limits, 'exec "$@"'].join(' && ');
  return new Promise((resolve, reject) => {
    // A group of its own, so that processes which it has started end with it.
    const child = spawn('/bin/sh', ['-c', script, 'sh', ...command], {
      cwd: folder,
      env: {},
      stdio: ['ignore', 'pipe', 'ignore'],
      detached: true,
    });
    let output = '';
    const endGroup = () => {
      try {
        process.kill(-child.pid!, 'SIGKILL');
      } catch {} // it has ended
    };
    const timer = setTimeout(endGroup, SECONDS * 1000);
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      output = (output + text).slice(-MAX_OUTPUT);
    });
    child.on('error', error => {
      clearTimeout(timer);
      reject(error);
    });
    child.on('exit', () => {
      clearTimeout(timer);
      endGroup();
    });
    child.on('close', () => resolve(output));
  });
}
