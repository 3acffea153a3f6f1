// Prints documents with planted facts: as JSON lines for evaluate.py, or (--text) as plain text for calibration, each
// document followed by its questions and answers.
//   node train/documents.mjs 200 6000 > FILE
//   node train/documents.mjs 16 4400 --first 9001 --text > FILE
import { parseArgs } from 'node:util';
import { openModelFile } from '../dist/engine/engine.js';
import { createDocument, evenDepths, readGrammar } from '../dist/eval/needle/document.js';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { first: { type: 'string', default: '1' }, text: { type: 'boolean', default: false } },
});
const [documents = 200, tokens = 6000] = positionals.map(Number);
const first = Number(values.first);
const { tokenizer, gguf } = await openModelFile('models/mimir.gguf');
await gguf.close();
const grammar = await readGrammar();
const count = text => tokenizer.encode(text).length;
const asText = ({ text, facts }) =>
  `${text}\n\n${facts.map(({ question, answer }) => `Question: ${question} Answer: ${answer}`).join('\n')}\n`;
for (let seed = first; seed < first + documents; seed++) {
  const document = createDocument(grammar, { seed, tokens, depths: evenDepths(10), count });
  console.log(values.text ? asText(document) : JSON.stringify(document));
}
