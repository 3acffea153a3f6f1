/**
 * llama.cpp as an oracle of given endings: `node llama-choices.mjs MODEL < items.json` prints the log probabilities of the
 * tokens of each ending, as JSON. Items are { shared: ids, endings: ids[] }. A process of its own, as llama-oracle.mjs.
 */
import { text } from 'node:stream/consumers';
import { getLlama, LlamaLogLevel } from 'node-llama-cpp';

const items = JSON.parse(await text(process.stdin));
const llama = await getLlama({ gpu: false, build: 'never', skipDownload: true, logLevel: LlamaLogLevel.error });
const model = await llama.loadModel({ modelPath: process.argv[2], checkTensors: false });
const context = await model.createContext({
  contextSize: 512,
  flashAttention: false,
  threads: 1,
  ignoreMemorySafetyChecks: true,
});
const sequence = context.getSequence();
const probabilities = { generateNext: { probabilities: true, options: { temperature: 1, topK: 0, topP: 1 } } };

async function logProbs(shared, ending) {
  await sequence.clearHistory();
  const found = [];
  const scored = [...shared.slice(-1), ...ending.slice(0, -1)].map(id => [id, probabilities]);
  await sequence.controlledEvaluate([...shared.slice(0, -1), ...scored], {
    onTokenResult(_, { next }) {
      if (next?.probabilities) found.push(Math.log(next.probabilities.get(ending[found.length])));
    },
  });
  return found;
}

const results = [];
for (const { shared, endings } of items) {
  const ofItem = [];
  for (const ending of endings) ofItem.push(await logProbs(shared, ending));
  results.push(ofItem);
}
process.stdout.write(JSON.stringify(results), () => process.exit(0));
