/** Generates a long document with planted facts, and questions about them. The same seed gives the same document. */
import { readFile } from 'node:fs/promises';
import { createRandom } from '../../codec/parts/random.ts';
import { InputError } from '../../util/errors.ts';
import { createStoryWriter, type Fact, type Grammar } from './grammar.ts';

export interface DocumentRequest {
  seed: number;
  /** Approximate length in tokens. */
  tokens: number;
  /** Positions of the facts: 0 is the start, 1 the end. */
  depths: readonly number[];
  /** Counts the tokens of a text. */
  count: (text: string) => number;
}

export interface PlantedFact extends Fact {
  depth: number;
}

export interface NeedleDocument {
  text: string;
  facts: PlantedFact[];
}

/** The grammar that Mimir was trained on, from the package. */
export async function readGrammar(): Promise<Grammar> {
  return JSON.parse(await readFile(new URL('../../../models/mimir.grammar.json', import.meta.url), 'utf8'));
}

export function createDocument(grammar: Grammar, { seed, tokens, depths, count }: DocumentRequest): NeedleDocument {
  if (depths.some(depth => !(depth >= 0 && depth <= 1)))
    throw new InputError(`Depths must be numbers from 0 to 1; got ${depths.join(', ')}.`);
  const writer = createStoryWriter(grammar, createRandom(seed).uniform);
  const order = depths.map((_, i) => i).sort((a, b) => depths[a]! - depths[b]!);
  const facts = writer.facts(depths.length).map((fact, i) => ({ ...fact, depth: depths[i]! }));
  const room = tokens - facts.reduce((sum, { statement }) => sum + count(` ${statement}`), 0);

  const prose: { text: string; end: number }[] = [];
  let length = 0;
  while (length < room) {
    let opening = '\n\n';
    for (const sentence of writer.story()) {
      if (sentence === '') opening = '\n\n';
      else if (length < room) {
        const text = (length === 0 ? '' : opening) + sentence;
        length += count(text);
        prose.push({ text, end: length });
        opening = ' ';
      }
    }
  }

  let text = '';
  let next = 0;
  for (const sentence of prose) {
    text += sentence.text;
    for (; next < order.length && facts[order[next]!]!.depth * length <= sentence.end; next++)
      text += ` ${facts[order[next]!]!.statement}`;
  }
  return { text, facts };
}

/** The centers of `count` equal parts of a document. */
export function evenDepths(count: number): number[] {
  return Array.from({ length: count }, (_, i) => (i + 0.5) / count);
}
