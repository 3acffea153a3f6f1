/**
 * Retrieval tasks of the kinds of RULER, generated at any length: a value by its key, one key among many, all values of a
 * key, variables that were assigned to each other, and the most frequent words. The same seed gives the same questions.
 */
import { createRandom, type Random } from '../../codec/parts/random.ts';
import { InputError } from '../../util/errors.ts';
import { createStoryWriter, type Grammar } from '../needle/grammar.ts';
import { promptFor, type Question } from './task.ts';

export interface RulerSource {
  /** Of the stories around the facts. */
  grammar: Grammar;
  chat: boolean;
  /** Lengths of the documents, in tokens. */
  lengths: readonly number[];
  /** Questions per length. */
  documents: number;
  seed: number;
  /** Counts the tokens of a text. */
  count(text: string): number;
}

/** The parts of a document, and its question. */
interface Puzzle {
  introduction: string;
  /** Planted at random places, in this order. */
  facts: readonly string[];
  /** One more piece of what surrounds the facts. */
  filler(): string;
  separator: string;
  question: string;
  /** All of them are right, and an answer gets the share that it names. */
  answers: readonly string[];
}

const VALUES_PER_KEY = 4;
const CHAIN = 5;
const FREQUENT_WORDS = 5;
const FREQUENT_COUNT = 12;

const SYLLABLES =
  'ba be bo da de di fa fe ga go ka ke ki la le lo ma me mi na ne no pa pe po ra re ri sa se so ta te to va ve vi za zo';

/** Names of three syllables are used up after this many, or hard to find. */
const MAX_SHORT_NAMES = 20_000;

/** Different made-up words, which no model knows anything about. */
function createNames({ uniform }: Random): () => string {
  const syllables = SYLLABLES.split(' ');
  const used = new Set<string>();
  return () => {
    let name = '';
    do {
      const length = used.size < MAX_SHORT_NAMES ? 3 : 5;
      name = Array.from({ length }, () => syllables[Math.floor(uniform() * syllables.length)]).join('');
    } while (used.has(name));
    used.add(name);
    return name;
  };
}

function createStories(grammar: Grammar, { uniform }: Random): () => string {
  const writer = createStoryWriter(grammar, uniform);
  let sentences: string[] = [];
  return () => {
    while (sentences.length === 0) sentences = writer.story().filter(Boolean);
    return sentences.shift()!;
  };
}

const randomValue = ({ uniform }: Random) => String(10_000 + Math.floor(uniform() * 90_000));
const statement = (key: string, value: string) => `The number of ${key} is ${value}.`;
const INTRODUCTION = 'Remember the numbers in this text. A question about them follows at the end.';

type CreatePuzzle = (random: Random, grammar: Grammar) => Puzzle;

/** The number of one key, among this filler. */
function oneKey(random: Random, names: () => string, filler: () => string, separator: string): Puzzle {
  const [key, value] = [names(), randomValue(random)];
  return {
    introduction: INTRODUCTION,
    facts: [statement(key, value)],
    filler,
    separator,
    question: `What is the number of ${key}? Answer with the number only.`,
    answers: [value],
  };
}

const keyValue: CreatePuzzle = (random, grammar) =>
  oneKey(random, createNames(random), createStories(grammar, random), ' ');

const multiKey: CreatePuzzle = random => {
  const names = createNames(random);
  return oneKey(random, names, () => statement(names(), randomValue(random)), '\n');
};

const multiValue: CreatePuzzle = (random, grammar) => {
  const key = createNames(random)();
  const values = Array.from({ length: VALUES_PER_KEY }, () => randomValue(random));
  return {
    introduction: INTRODUCTION,
    facts: values.map(value => `One of the numbers of ${key} is ${value}.`),
    filler: createStories(grammar, random),
    separator: ' ',
    question: `What are all ${VALUES_PER_KEY} numbers of ${key}? Answer with the numbers only.`,
    answers: values,
  };
};

const variables: CreatePuzzle = (random, grammar) => {
  const names = createNames(random);
  const chain = () => {
    const value = randomValue(random);
    const members = Array.from({ length: CHAIN }, () => names().toUpperCase());
    return {
      value,
      members,
      facts: members.map((name, i) => `VAR ${name} = ${i === 0 ? value : `VAR ${members[i - 1]}`}.`),
    };
  };
  const [asked, other] = [chain(), chain()];
  return {
    introduction: 'Keep track of the variables that are assigned in this text.',
    facts: asked.facts.flatMap((fact, i) => [fact, other.facts[i]]),
    filler: createStories(grammar, random),
    separator: ' ',
    question: `Which ${CHAIN} variables have the value ${asked.value}, directly or through another variable? Answer with their names only.`,
    answers: asked.members,
  };
};

const frequentWords: CreatePuzzle = random => {
  const names = createNames(random);
  const frequent = Array.from({ length: FREQUENT_WORDS }, names);
  const rounds = Array.from({ length: FREQUENT_COUNT }, () => shuffle(frequent, random));
  return {
    introduction: `Below is a list of words. Find the ${FREQUENT_WORDS} that occur most often; all others occur once.`,
    facts: rounds.flat(),
    filler: names,
    separator: ', ',
    question: `Which ${FREQUENT_WORDS} words occur most often in the list? Answer with these words only.`,
    answers: frequent,
  };
};

function shuffle<T>(items: readonly T[], { uniform }: Random): T[] {
  const order = items.map(item => ({ item, key: uniform() }));
  return order.sort((a, b) => a.key - b.key).map(({ item }) => item);
}

const PUZZLES = {
  'ruler-key-value': keyValue,
  'ruler-multi-key': multiKey,
  'ruler-multi-value': multiValue,
  'ruler-variables': variables,
  'ruler-words': frequentWords,
} satisfies Record<string, CreatePuzzle>;

export type RulerName = keyof typeof PUZZLES;

export const rulerNames = Object.keys(PUZZLES) as RulerName[];

/** Filler up to the length, with the facts at random places among it. */
function writeDocument(
  { facts, filler, separator }: Puzzle,
  tokens: number,
  count: RulerSource['count'],
  random: Random,
) {
  const size = (part: string) => count(part + separator);
  let room = tokens - facts.reduce((sum, fact) => sum + size(fact), 0);
  const parts: string[] = [];
  while (room > 0) {
    const part = filler();
    room -= Math.max(1, size(part));
    if (room >= 0) parts.push(part);
  }
  const places = facts.map(() => Math.floor(random.uniform() * (parts.length + 1))).sort((a, b) => a - b);
  const pieces: string[] = [];
  for (let at = 0, next = 0; at <= parts.length; at++) {
    while (next < facts.length && places[next] === at) pieces.push(facts[next++]);
    if (at < parts.length) pieces.push(parts[at]);
  }
  return pieces.join(separator);
}

/** The share of the answers that the text names, as whole words. */
function shareNamed(said: string, answers: readonly string[]): number {
  const words = new Set(said.toLowerCase().match(/[\p{L}\p{N}]+/gu));
  return answers.filter(answer => words.has(answer.toLowerCase())).length / answers.length;
}

export function createRuler(name: RulerName, source: RulerSource): Question[] {
  const { grammar, chat, lengths, documents, seed, count } = source;
  return lengths.flatMap(tokens =>
    Array.from({ length: documents }, (_, i) => {
      const random = createRandom(seed + i);
      const puzzle = PUZZLES[name](random, grammar);
      const { introduction, question, answers } = puzzle;
      const room = tokens - count(`${introduction}\n\n\n\n${question}`);
      if (room < count(puzzle.facts.join(puzzle.separator)))
        throw new InputError(
          option => `${name} has no room for its facts in ${tokens} tokens. Give longer ${option('lengths')}.`,
          { option: 'lengths' },
        );
      const document = writeDocument(puzzle, room, count, random);
      return {
        id: `${tokens}/${seed + i}`,
        group: `${tokens} tokens`,
        prompt: promptFor(`${introduction}\n\n${document}\n\n${question}`, chat),
        maxTokens: 32 + 12 * answers.length,
        stop: chat ? [] : ['\n\n'],
        read: ({ text }: { text: string }) => text.trim(),
        score: (said: string) => shareNamed(said, answers),
      };
    }),
  );
}
