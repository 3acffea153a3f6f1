/** Mimir's vocabulary, for tests of grammars. */
import { openModelFile } from '../../src/engine/engine.ts';
import { type Constraint, type Constraints, createConstraints } from '../../src/engine/grammar/constraint.ts';
import type { Tokenizer } from '../../src/model/tokenizer.ts';
import { mimir } from './mimir.ts';

export async function openConstraints(): Promise<{ tokenizer: Tokenizer; constraints: Constraints }> {
  const { gguf, tokenizer } = await openModelFile(mimir);
  await gguf.close();
  return { tokenizer, constraints: createConstraints(tokenizer) };
}

/** Whether the constraint allows `text` as a whole answer. */
export const acceptsAnswer = (tokenizer: Tokenizer, constraint: Constraint, text: string): boolean =>
  [...tokenizer.encode(text), tokenizer.eos ?? tokenizer.eot!].every(id => {
    const isAllowed = ((constraint.mask()[id >>> 5] >>> (id & 31)) & 1) === 1;
    if (isAllowed) constraint.accept(id);
    return isAllowed;
  });
