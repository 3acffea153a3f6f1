/** The address of a comparison: `#compare=f16,mead2&sample=stories` answers about the sample document at once. */
export interface CompareAddress {
  codecs: readonly [string, string];
  /** Start with the sample document. */
  hasSample: boolean;
}

/** Undefined if the address is of no comparison, or names a codec that the app does not offer. */
export function readAddress(hash: string, codecs: readonly string[]): CompareAddress | undefined {
  const fields = new URLSearchParams(hash.replace(/^#/, ''));
  const [left, right, ...more] = (fields.get('compare') ?? '').split(',');
  if (!left || !right || more.length > 0 || ![left, right].every(name => codecs.includes(name))) return undefined;
  return { codecs: [left, right], hasSample: fields.has('sample') };
}

export const writeAddress = ({ codecs: [left, right], hasSample }: CompareAddress): string =>
  `#compare=${left},${right}${hasSample ? '&sample=stories' : ''}`;
