// Documents with planted facts: as JSON lines for evaluate.py, or as plain text with the questions answered at the end of
// each, to calibrate on.
//   node train/documents.mjs 200 6000 > FILE
//   node train/documents.mjs 16 4400 --first 9001 --text > FILE
import { parseArgs } from 'node:util';
import { openModelFile } from '../dist/engine/engine.js';
import { evenDepths, makeDocument, readGrammar } from '../dist/eval/needle/document.js';

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
  const document = makeDocument(grammar, { seed, tokens, depths: evenDepths(10), count });
  console.log(values.text ? asText(document) : JSON.stringify(document));
}
