// How far do codecs move a model's predictions? node examples/evaluate.mjs [model.gguf] [text.txt]
import { readFile } from 'node:fs/promises';
import { evaluate } from 'kvasir/eval';

const [model = 'models/mimir.gguf', file = 'models/MIMIR.md'] = process.argv.slice(2);
const text = await readFile(file, 'utf8');
const { rows } = await evaluate(model, { text, kv: ['tq4', 'tq2'], context: 256, rows: 1 });
for (const { kv, bits, kld, top1 } of rows)
  console.log(
    `${kv}: ${bits.toFixed(3)} bits, ${kld.toPrecision(2)} nats, same top token ${(100 * top1).toFixed(1)} %`,
  );
