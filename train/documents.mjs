// Writes documents with planted facts as JSON lines, for evaluate.py: `node train/documents.mjs 200 6000 > FILE`
import { openModelFile } from '../dist/engine/engine.js';
import { evenDepths, makeDocument, readGrammar } from '../dist/eval/needle/document.js';

const [documents = 200, tokens = 6000] = process.argv.slice(2).map(Number);
const { tokenizer, gguf } = await openModelFile('models/mimir.gguf');
await gguf.close();
const grammar = await readGrammar();
const count = text => tokenizer.encode(text).length;
for (let seed = 1; seed <= documents; seed++)
  console.log(JSON.stringify(makeDocument(grammar, { seed, tokens, depths: evenDepths(10), count })));
