#!/usr/bin/env node
import { Command } from 'commander';
import { zoo } from '../codec/zoo.ts';
import { InputError, KvasirError } from '../errors.ts';
import { addCalibrate } from './calibrate.ts';
import { addChat } from './chat.ts';
import { addCodecs, codecTable } from './codecs.ts';
import { addDemo } from './demo.ts';
import { addDoctor } from './doctor.ts';
import { addEstimate } from './estimate.ts';
import { addEval } from './eval.ts';
import { addInspect } from './inspect.ts';
import { addPlan } from './plan.ts';
import { addPull } from './pull.ts';
import { addRun } from './run.ts';
import { packageVersion } from './version.ts';

function createProgram(): Command {
  const program = new Command('kvasir')
    .description('Long-context LLMs in TypeScript on a KV cache of 2 to 4 bits a value')
    .version(packageVersion)
    .showHelpAfterError('(--help shows what there is)')
    .argument('[command]')
    .usage('[command] [options]')
    .action(name => {
      if (name) throw new InputError(`There is no command "${name}". \`kvasir --help\` lists them.`);
      welcome();
    });
  addDemo(program);
  addPull(program);
  addRun(program);
  addChat(program);
  addInspect(program);
  addCalibrate(program);
  addPlan(program);
  addEval(program);
  addCodecs(program);
  addEstimate(program);
  addDoctor(program);
  return program;
}

/** What the bare command shows. */
function welcome(): void {
  console.log(codecTable(zoo, 128));
  console.log(
    [
      'Next:',
      '  npx kvasir demo                       a small model in the package answers from a long document, by codec',
      '  npx kvasir run model.gguf "Hello"     any GGUF model of the llama, qwen2 or qwen3 family',
      '  npx kvasir codecs tq4 --explain       where every byte of a page lies',
      '  npx kvasir estimate --layers 36 --kv-heads 8 --head-dim 128 --context 128k --budget 20GiB',
      '  README.md                             encode, attend and decode vectors of your own',
    ].join('\n'),
  );
}

/** A reader that stops early (head, less) is no error of ours. */
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  if (error.code === 'EPIPE') process.exit(0);
  throw error;
});

try {
  await createProgram().parseAsync();
} catch (error) {
  if (!(error instanceof KvasirError)) throw error;
  console.error(`kvasir: ${error.message}`);
  process.exitCode = 1;
}
