/** `npm run bench -- NAME [options]`: one file a question. */
import { parseArgs } from 'node:util';
import { KvasirError } from '../src/errors.ts';
import { benchAgree } from './agree.ts';
import { benchAttention } from './attention.ts';
import { benchDecode } from './decode.ts';

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    model: { type: 'string', default: '../shared/models/SmolLM2-135M-Instruct.Q4_1.gguf' },
    text: { type: 'string', default: '../shared/data/wikitext2-valid.txt' },
    kv: { type: 'string', default: 'f16,tq4,tq4u,tq2,tq2u' },
    depths: { type: 'string', default: '0,4096,16384' },
    threads: { type: 'string', default: '2' },
    peers: { type: 'boolean', default: true },
    json: { type: 'boolean', default: false },
  },
  allowNegative: true,
});

const benches: Record<string, (options: typeof values) => Promise<void>> = {
  decode: benchDecode,
  agree: benchAgree,
  attention: benchAttention,
};
const bench = benches[positionals[0]];
if (!bench) {
  console.error(
    `usage: npm run bench -- ${Object.keys(benches).join(' | ')} [--model FILE] [--kv SPECS] [--depths 0,4096]`,
  );
  process.exit(1);
}
try {
  await bench(values);
} catch (error) {
  if (!(error instanceof KvasirError)) throw error;
  console.error(`bench: ${error.message}`);
  process.exitCode = 1;
}
