/**
 * llama.cpp's perplexity through node-llama-cpp with an f16 cache. Reads rows of token ids as JSON from stdin, evaluates
 * each from an empty cache, scores it from a given position, and prints one line of JSON.
 */
import { text } from 'node:stream/consumers';
import type { Token } from 'node-llama-cpp';
import { openSequence } from './llama-context.ts';

const [modelPath, flash, fromPosition, threadCount] = process.argv.slice(2);
const rows: number[][] = JSON.parse(await text(process.stdin));
const [from, threads] = [Number(fromPosition), Number(threadCount)];
const sequence = await openSequence(modelPath, flash, threads, rows[0].length);
let [nll, tokens] = [0, 0];
for (const row of rows) {
  await sequence.clearHistory();
  const input = row.slice(0, -1).map((id, i) => {
    if (i < from) return id as Token;
    // The actual token, and the most likely one: the total weight is relative to its logit.
    const logits = { filter: { tokens: [row[i + 1] as Token], includeTop: 1 } };
    return [id as Token, { generateNext: { logits, totalLogitWeight: true } }] as [Token, object];
  });
  await sequence.controlledEvaluate(input, {
    onTokenResult(i, { next: { logits, totalLogitWeight } }) {
      const found = logits!.get(row[i + 1] as Token)!;
      nll += Math.max(...logits!.values()) + Math.log(totalLogitWeight!) - found;
      tokens++;
    },
  });
}
console.log(JSON.stringify({ perplexity: Math.exp(nll / tokens), tokens }));
process.exit(0);
