import type { Result } from '../../src/index.ts';

/** The tokens of an answer with their log probabilities, to compare answers bit for bit. */
export const traceOf = ({ logprobs }: Result): string[] => logprobs!.map(({ id, logprob }) => `${id} ${logprob}`);
