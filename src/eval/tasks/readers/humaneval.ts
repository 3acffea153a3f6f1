/** HumanEval: functions that the model writes, and tests that they must pass. */
import { InputError } from '../../../util/errors.ts';
import { readRecords } from '../data-file.ts';
import type { RunProgram } from '../run-program.ts';
import type { Question, TaskSource } from '../task.ts';

const INSTRUCTION = 'Complete this Python function. Answer with the whole function in one code block.';
/** What follows a function in a plain model's text. */
const STOP = ['\ndef ', '\nclass ', '\nif ', '\nprint(', '\n#', '\n@', '\n```'];

/** The code of an answer: its first code block that defines the function, else its first one, else the whole text. */
function codeOf(text: string, entryPoint: string): string {
  const blocks = [...text.matchAll(/```[a-zA-Z]*\n([\s\S]*?)(?:\n```|$)/g)].map(([, code]) => code);
  return blocks.find(code => code.includes(`def ${entryPoint}(`)) ?? blocks[0] ?? text;
}

export function readHumanEval({ data, chat }: TaskSource, run?: RunProgram): Question[] {
  if (!run)
    throw new InputError(
      option =>
        `HumanEval runs programs that the model has written, on this machine. To allow that, give ${option('runCode')}.`,
      { option: 'runCode' },
    );
  return readRecords(data).map(record => {
    const [prompt, test, entryPoint] = ['prompt', 'test', 'entry_point'].map(name => record.string(name));
    if (!/^[A-Za-z_]\w*$/.test(entryPoint)) record.fail('"entry_point" must be the name of a function.');
    return {
      id: record.has('task_id') ? record.string('task_id') : String(record.line),
      prompt: chat ? [{ role: 'user', content: `${INSTRUCTION}\n\n\`\`\`python\n${prompt}\`\`\`` }] : prompt,
      maxTokens: 768,
      stop: chat ? [] : STOP,
      read({ text }) {
        const code = codeOf(text, entryPoint);
        // The prompt comes first in either case: it has imports and helpers, which answers often leave out.
        return code.includes(`def ${entryPoint}(`) ? `${prompt.trimEnd()}\n    pass\n\n${code}` : prompt + code;
      },
      score: async program => ((await run(`${program}\n\n${test}\n\ncheck(${entryPoint})\n`)) ? 1 : 0),
    };
  });
}
