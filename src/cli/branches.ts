/** The branches of a chat: conversations, each with a session file if it has one. One of them is current. */
import { resolve } from 'node:path';
import type { Model } from '../api/model.ts';
import type { Conversation } from '../chat/conversation.ts';
import { InputError } from '../util/errors.ts';
import { fileExists, formatLastExchange, formatLength, resumeSession } from './session.ts';

interface Branch {
  conversation: Conversation;
  /** Where it is saved after each change. */
  file?: string;
  /** Why the last change is not saved. */
  problem?: string;
}

/** Methods return what the user is told. Branches are numbered from 1. */
export interface Branches {
  readonly conversation: Conversation;
  /** Continues in a copy of the current branch. The copy has no file, so that both do not write to the same one. */
  fork(): string;
  /** Continues in the branch of this number. */
  select(number: string): string;
  list(): string;
  /** Continues in a saved conversation. */
  load(path: string): Promise<string>;
  /** Saves the current branch to its file, or to a new file, which it keeps. */
  save(path: string): Promise<string>;
  /** Saves the current branch after a change, if it has a file. A failure is reported once, and does not end the chat. */
  saveChange(): Promise<string>;
  /** Tries again to save what is not saved, and disposes all conversations. */
  close(): Promise<void>;
}

/** `report` returns the message of an error that is the user's to solve, and throws any other. */
export function createBranches(model: Model, first: Branch, report: (error: unknown) => string): Branches {
  const branches = [first];
  let current = first;

  const describe = (branch: Branch) =>
    `branch ${branches.indexOf(branch) + 1}${branch.file === undefined ? '' : ` (${branch.file})`}: ` +
    formatLength(branch.conversation);
  const show = (branch: Branch) => {
    current = branch;
    return `This is ${describe(branch)}.${formatLastExchange(branch.conversation)}`;
  };
  const add = (branch: Branch): Branch => {
    branches.push(branch);
    return branch;
  };
  const findFile = (path: string) => branches.find(({ file }) => file !== undefined && resolve(file) === resolve(path));
  const trySave = async (branch: Branch, file: string) => {
    branch.problem = await branch.conversation.save(file).then(() => undefined, report);
    return branch.problem;
  };

  return {
    get conversation() {
      return current.conversation;
    },
    fork() {
      const origin = branches.indexOf(current) + 1;
      current = add({ conversation: current.conversation.fork() });
      const saved = branches[origin - 1].file === undefined ? '' : ' /save FILE saves it.';
      return `This is branch ${branches.length}, a copy of branch ${origin}. /branch ${origin} goes back.${saved}`;
    },
    select(number) {
      const branch = branches[Number(number) - 1];
      if (!branch) throw new InputError(`There is no branch ${number}; branches are 1 to ${branches.length}.`);
      return show(branch);
    },
    list: () => branches.map(branch => `${branch === current ? '*' : ' '} ${describe(branch)}`).join('\n'),
    async load(path) {
      return show(findFile(path) ?? add({ conversation: await resumeSession(model, path), file: path }));
    },
    async save(path) {
      const file = path || current.file;
      if (file === undefined) throw new InputError('This branch has no file yet. Usage: /save FILE');
      if (findFile(file) !== current && (await fileExists(file)))
        throw new InputError(`${file} exists. Use another name, or delete it first.`);
      await current.conversation.save(file);
      Object.assign(current, { file, problem: undefined });
      return `Saved to ${file}. Further answers are saved there too.`;
    },
    async saveChange() {
      const { file, conversation } = current;
      if (file === undefined) return '';
      if (!conversation.messages.some(({ role }) => role === 'user'))
        return ` ${file} keeps the conversation that it has until the next answer.`;
      const before = current.problem;
      const problem = await trySave(current, file);
      if (problem !== undefined && problem !== before) console.error(problem);
      return '';
    },
    async close() {
      for (const branch of branches) {
        const { file, problem } = branch;
        if (file !== undefined && problem !== undefined && (await trySave(branch, file)) !== undefined)
          console.error(`${branch.problem} ${file} does not have the last changes.`);
        await branch.conversation.dispose();
      }
    },
  };
}
