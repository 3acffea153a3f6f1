/** llama.cpp through node-llama-cpp: best milliseconds per token by depth, and prefill of 512 tokens, as one JSON line. */
import { openSequence } from './llama-context.ts';

const [modelPath, flash, depthList, threadCount, stepCount] = process.argv.slice(2);
const depths = depthList.split(',').map(Number);
const [threads, steps] = [Number(threadCount), Number(stepCount)];
const sequence = await openSequence(modelPath, flash, threads, Math.max(...depths) + 2048);
let next = 0;
const token = () => (10 + ((next++ * 7919) % 900)) as never;
const prompt = (count: number) => Array.from({ length: count }, token);

let prefill = 0;
for (let i = 0; i < 3; i++) {
  await sequence.clearHistory();
  const start = performance.now();
  await sequence.evaluateWithoutGeneratingNewTokens(prompt(512));
  prefill = Math.max(prefill, 512e3 / (performance.now() - start));
}
await sequence.clearHistory();
const ms: Record<number, number> = {};
for (const depth of depths) {
  const missing = depth - sequence.nextTokenIndex;
  if (missing > 0) await sequence.evaluateWithoutGeneratingNewTokens(prompt(missing));
  const stream = sequence.evaluate([token()], { temperature: 0, yieldEogToken: true });
  await stream.next();
  await stream.next();
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i < steps; i++) {
    const start = performance.now();
    if ((await stream.next()).done) break;
    best = Math.min(best, performance.now() - start);
  }
  await stream.return(undefined as never);
  ms[depth] = best;
}
console.log(JSON.stringify({ ms, prefill }));
process.exit(0);
