// The cache on vectors of your own, without a model: node examples/vectors.mjs [codec]
import { createCache } from 'kvasir';

const codec = process.argv[2] ?? 'tq4';
const cache = await createCache({ heads: 8, kvHeads: 2, headDim: 64 }, codec);
const sequence = cache.sequence();
const random = length => new Float32Array(length).map(() => Math.random() - 0.5);
await sequence.append(random(1000 * 2 * 64), random(1000 * 2 * 64)); // keys and values of 1,000 tokens
const output = await sequence.attend(0, random(8 * 64)); // one query of 8 heads
console.log(`${codec}: ${sequence.bytes} bytes instead of ${1000 * 2 * 64 * 2 * 2} in f16, ${output.length} outputs`);
await cache.dispose();
