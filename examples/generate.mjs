// Answers a question on a document, streamed. Run it: node examples/generate.mjs [model.gguf]
import { loadModel } from 'kvasir';

const model = await loadModel(process.argv[2] ?? 'models/mimir.gguf', { kv: 'tq4' });
const document = 'The door code of the old mill is 4817. The door code of the old barn is 2265.';
const question = 'Which code opens the door of the old mill?';
const answer = model.chat([{ role: 'user', content: `${document}\n\n${question}` }], { temperature: 0, maxTokens: 20 });
for await (const text of answer) process.stdout.write(text);
const { finish, usage } = await answer.result();
console.log(`\n${finish}: ${usage.promptTokens} tokens in, ${usage.completionTokens} out, on ${model.device.name}`);
await model.dispose();
