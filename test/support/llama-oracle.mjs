/**
 * llama.cpp as an oracle: `node llama-oracle.mjs MODEL CONTEXT < ids.json` evaluates the token ids and prints, for each position, the
 * probabilities of all next tokens, as JSON. A process of its own, because a model that it refuses ends the process.
 */
import { text } from 'node:stream/consumers';
import { getLlama, LlamaLogLevel } from 'node-llama-cpp';

const ids = JSON.parse(await text(process.stdin));
const llama = await getLlama({ gpu: false, build: 'never', skipDownload: true, logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath: process.argv[2], checkTensors: false });
const context = await model.createContext({
  contextSize: Number(process.argv[3]),
  flashAttention: false,
  threads: 1,
  ignoreMemorySafetyChecks: true,
});
const sequence = context.getSequence();
const rows = ids.map(id => [
  id,
  { generateNext: { probabilities: true, options: { temperature: 1, topK: 0, topP: 1 } } },
]);
const found = [];
await sequence.controlledEvaluate(rows, {
  onTokenResult(_, { next: { probabilities } }) {
    const row = Array(probabilities.size).fill(0);
    for (const [token, probability] of probabilities) row[token] = probability;
    found.push(row);
  },
});
process.stdout.write(JSON.stringify(found), () => process.exit(0));
