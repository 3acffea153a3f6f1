/**
 * llama.cpp's perplexity through node-llama-cpp, f16 cache: rows of token ids as JSON on standard input, each read from
 * an empty cache and scored from a position on; one line of JSON out.
 */
import { text } from 'node:stream/consumers';
import { getLlama, LlamaLogLevel, type Token } from 'node-llama-cpp';

const [modelPath, flash, fromPosition, threadCount] = process.argv.slice(2);
const rows: number[][] = JSON.parse(await text(process.stdin));
const [from, threads] = [Number(fromPosition), Number(threadCount)];
const llama = await getLlama({
  gpu: false,
  build: 'never',
  skipDownload: true,
  maxThreads: threads,
  logLevel: LlamaLogLevel.error,
});
const model = await llama.loadModel({ modelPath });
const context = await model.createContext({
  contextSize: rows[0].length,
  batchSize: 512,
  flashAttention: flash === 'on',
  threads: { ideal: threads, min: threads },
  ignoreMemorySafetyChecks: true,
  failedCreationRemedy: false,
});
const sequence = context.getSequence();
let [nll, tokens] = [0, 0];
for (const row of rows) {
  await sequence.clearHistory();
  const input = row.slice(0, -1).map((id, i) => {
    if (i < from) return id as Token;
    // The token that came, and the likeliest one: its logit is what the total weight is relative to.
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
