// A conversation that is saved, and continued without reading its messages again: node examples/conversation.mjs
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadModel } from 'kvasir';

const file = join(tmpdir(), `mill-${process.pid}.kvsession`);
const model = await loadModel(process.argv[2] ?? 'models/mimir.gguf', { kv: 'tq4' });
const options = { temperature: 0, maxTokens: 20 };

const conversation = model.conversation();
const text = 'The door code of the old mill is 4817. The glass spoon costs 1304 crowns.';
const first = await conversation.send(`${text}\n\nWhich code opens the door of the old mill?`, options).result();
await conversation.save(file);

const restored = await model.restore(file);
const second = await restored.send('What is the price of the glass spoon in crowns?', options).result();
console.log(first.text.trim(), second.text.trim(), `${second.usage.reusedTokens} tokens reused`);
await model.dispose();
