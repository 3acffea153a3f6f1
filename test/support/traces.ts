/** Synthetic request traces of several kinds. They are deterministic; another seed gives another trace of the same kind. */
import type { TraceRequest } from '../../bench/trace/replay.ts';
import { type Random, seeded } from './random.ts';

type Blocks = number[];

function createBlocks(): (count: number) => Blocks {
  let next = 0;
  return count => Array.from({ length: count }, () => next++);
}

/** Draws from 0 to `count - 1` with weights 1 / rank^exponent. */
function createZipf(random: Random, count: number, exponent: number): () => number {
  let total = 0;
  const sums = Array.from({ length: count }, (_, i) => {
    total += (i + 1) ** -exponent;
    return total;
  });
  return () => {
    const drawn = random.next() * total;
    let [low, high] = [0, count - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sums[middle] < drawn) low = middle + 1;
      else high = middle;
    }
    return low;
  };
}

const repeat = (count: number, request: (i: number) => Blocks): TraceRequest[] =>
  Array.from({ length: count }, (_, i) => ({ blocks: request(i) }));

/** Conversations that start every `every` and are continued after `pause()`, each time with what was said before. */
function conversations(
  count: number,
  every: number,
  create: () => { blocks: Blocks; turns: number; grow(): Blocks; pause(): number },
): TraceRequest[] {
  const requests: { time: number; blocks: Blocks }[] = [];
  for (let i = 0; requests.length < 1.3 * count; i++) {
    const { blocks, turns, grow, pause } = create();
    for (let [turn, time, text] = [0, i * every, blocks]; turn < turns; turn++) {
      requests.push({ time, blocks: text });
      text = [...text, ...grow()];
      time += pause();
    }
  }
  return requests.sort((a, b) => a.time - b.time).slice(0, count);
}

export const traces: Record<string, (count: number, seed?: number) => TraceRequest[]> = {
  'agents with long system prompts': (count, seed = 0) => {
    const [random, blocks] = [seeded(1 + seed), createBlocks()];
    const prompts = [40, 25, 60].map(blocks);
    return conversations(count, 8, () => ({
      blocks: [...prompts[random.below(3)], ...blocks(2 + random.below(8))],
      turns: 5 + random.below(30),
      grow: () => blocks(1 + random.below(3)),
      pause: () => 2 + random.below(6),
    }));
  },
  'retrieval with hot documents': (count, seed = 0) => {
    const [random, blocks] = [seeded(2 + seed), createBlocks()];
    const prompt = blocks(6);
    const documents = Array.from({ length: 2000 }, () => blocks(4 + random.below(10)));
    const draw = createZipf(random, documents.length, 0.9);
    return repeat(count, () => [...prompt, ...documents[draw()], ...blocks(1 + random.below(2))]);
  },
  'hot prompts between long prompts that come once': (count, seed = 0) => {
    const [random, blocks] = [seeded(3 + seed), createBlocks()];
    const hot = Array.from({ length: 60 }, () => blocks(10));
    const draw = createZipf(random, hot.length, 0.6);
    return repeat(count, () => (random.next() < 0.3 ? blocks(30) : [...hot[draw()], ...blocks(1)]));
  },
  'chats that are continued': (count, seed = 0) => {
    const [random, blocks] = [seeded(4 + seed), createBlocks()];
    const prompt = blocks(4);
    return conversations(count, 2.5, () => ({
      blocks: [...prompt, ...blocks(1 + random.below(12))],
      turns: 1 + Math.floor(-4 * Math.log(1 - random.next())),
      grow: () => blocks(1 + random.below(3)),
      pause: () => Math.exp(3.6 + 1.2 * random.normal()),
    }));
  },
  'a loop longer than the cache': count => {
    const blocks = createBlocks();
    const prompts = Array.from({ length: 200 }, () => blocks(10));
    return repeat(count, i => prompts[i % prompts.length]);
  },
  zipf: (count, seed = 0) => {
    const [random, blocks] = [seeded(6 + seed), createBlocks()];
    const prompts = Array.from({ length: 3000 }, () => blocks(1 + random.below(5)));
    const draw = createZipf(random, prompts.length, 0.8);
    return repeat(count, () => prompts[draw()]);
  },
  'zipf over prompts that are replaced now and then': (count, seed = 0) => {
    const [random, blocks] = [seeded(7 + seed), createBlocks()];
    const draw = createZipf(random, 800, 0.9);
    let prompts: Blocks[] = [];
    return repeat(count, i => {
      if (i % 2000 === 0) prompts = Array.from({ length: 800 }, () => blocks(1 + random.below(5)));
      return prompts[draw()];
    });
  },
  'recently used prompts are the likeliest': (count, seed = 0) => {
    const [random, blocks] = [seeded(9 + seed), createBlocks()];
    const stack: Blocks[] = [];
    return repeat(count, () => {
      const depth = Math.floor(-150 * Math.log(1 - random.next()));
      const [prompt] = depth < stack.length ? stack.splice(stack.length - 1 - depth, 1) : [blocks(5)];
      stack.push(prompt);
      return prompt;
    });
  },
  uniform: (count, seed = 0) => {
    const [random, blocks] = [seeded(10 + seed), createBlocks()];
    const prompts = Array.from({ length: 1000 }, () => blocks(4));
    return repeat(count, () => prompts[random.below(prompts.length)]);
  },
  'a window that drifts': (count, seed = 0) => {
    const [random, blocks] = [seeded(11 + seed), createBlocks()];
    const prompts = Array.from({ length: Math.ceil(count / 4) + 300 }, () => blocks(4));
    return repeat(count, i => prompts[Math.floor(i / 4) + random.below(300)]);
  },
  'every prompt twice': (count, seed = 0) => {
    const [random, blocks] = [seeded(12 + seed), createBlocks()];
    return conversations(count, 1, () => ({
      blocks: blocks(8),
      turns: 2,
      grow: () => [],
      pause: () => 33 + random.below(66),
    }));
  },
  'chats between scans of prompts that come once': (count, seed = 0) => {
    const [random, blocks] = [seeded(13 + seed), createBlocks()];
    const chats = conversations(count, 4, () => ({
      blocks: blocks(2 + random.below(6)),
      turns: 2 + random.below(8),
      grow: () => blocks(1 + random.below(2)),
      pause: () => 5 + random.below(40),
    }));
    return chats.map((chat, i) => (i % 100 < 25 ? { blocks: blocks(12) } : chat));
  },
  'popularity that drifts': (count, seed = 0) => {
    const [random, blocks] = [seeded(14 + seed), createBlocks()];
    const prompts = Array.from({ length: 400 }, () => blocks(1 + random.below(5)));
    const draw = createZipf(random, prompts.length, 1);
    return repeat(count, i => prompts[(draw() + Math.floor(i / 5)) % prompts.length]);
  },
  'a loop, then zipf, then the recently used, in turn': (count, seed = 0) => {
    const [random, blocks] = [seeded(15 + seed), createBlocks()];
    const prompts = Array.from({ length: 500 }, () => blocks(1 + random.below(5)));
    const draw = createZipf(random, prompts.length, 0.9);
    const recent: Blocks[] = [];
    const phases = [
      (i: number) => prompts[i % 150],
      () => prompts[draw()],
      () => recent[recent.length - 1 - Math.floor(Math.min(0.999, -0.2 * Math.log(1 - random.next())) * recent.length)],
    ];
    return repeat(count, i => {
      const prompt = phases[Math.floor(i / 120) % phases.length](i);
      recent.push(prompt);
      return prompt;
    });
  },
  'chats and zipf at the same time': (count, seed = 0) => {
    const [random, blocks] = [seeded(16 + seed), createBlocks()];
    const prompts = Array.from({ length: 600 }, () => blocks(1 + random.below(5)));
    const draw = createZipf(random, prompts.length, 0.9);
    const chats = conversations(count, 5, () => ({
      blocks: blocks(2 + random.below(6)),
      turns: 1 + random.below(10),
      grow: () => blocks(1 + random.below(3)),
      pause: () => 3 + random.below(60),
    }));
    return chats.map(chat => (random.next() < 0.5 ? chat : { blocks: prompts[draw()] }));
  },
};
