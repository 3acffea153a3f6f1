/**
 * Writes two texts unlike the prose of a calibration, for `kvasir eval --text`: this project's source code, and a chat
 * in the model's template whose answers are sections of the documentation.
 *
 *   npm run build && node scripts/unseen-text.mjs model.gguf OUT
 *   kvasir eval model.gguf --text OUT/code.txt --kv mead2
 *   kvasir eval model.gguf --text OUT/chat.txt --special --kv mead2
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { openModelFile } from '../dist/engine/engine.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const [model, out] = process.argv.slice(2);
if (!model || !out) throw new Error('Usage: node scripts/unseen-text.mjs model.gguf OUT');

const read = path => readFileSync(join(root, path), 'utf8');
const list = (folder, ending) =>
  readdirSync(join(root, folder), { recursive: true })
    .map(String)
    .filter(name => name.endsWith(ending))
    .sort()
    .map(name => join(folder, name));

const code = list('src', '.ts').map(read).join('\n');

const ASK = [
  'What is there to know about',
  'Tell me about',
  'Could you explain',
  'And what about',
  'Please say more on',
];

/** One conversation per document, one question per section. */
function conversation(document) {
  const [first, ...sections] = document.split(/^#+ /m).filter(part => part.trim() !== '');
  return [first, ...sections].flatMap((section, i) => {
    const [title, ...text] = section.split('\n');
    const answer = text.join('\n').trim();
    if (answer === '') return [];
    return [
      { role: 'user', content: `${ASK[i % ASK.length]} "${title.trim()}"?` },
      { role: 'assistant', content: answer },
    ];
  });
}

const file = await openModelFile(model);
await file.gguf.close();
const chat = ['README.md', 'CONTRIBUTING.md', ...list('docs', '.md')]
  .map(path => file.template.render(conversation(read(path)), { addGenerationPrompt: false }))
  .join('');

mkdirSync(out, { recursive: true });
for (const [name, text, parseSpecialTokens] of [
  ['code.txt', code, false],
  ['chat.txt', chat, true],
]) {
  writeFileSync(join(out, name), text);
  console.log(`${join(out, name)}: ${file.tokenizer.encode(text, { parseSpecialTokens }).length} tokens`);
}
