/** `npm run bench -- NAME [options]`: one file per benchmark; `--help` lists them. */
import { parseArgs } from 'node:util';
import { KvasirError } from '../src/errors.ts';
import { benchAgree } from './agree.ts';
import { benchAttention } from './attention.ts';
import { benchDecode } from './decode.ts';
import { benchMemory } from './memory.ts';
import { benchQuality } from './quality.ts';
import { benchWebGpuAttention } from './webgpu-attention.ts';
import { benchWebGpuE2e } from './webgpu-e2e.ts';
import { benchWebGpuMatmul } from './webgpu-matmul.ts';

const specs = 'f16,tq4,tq4u,tq2,tq2u';
const usage = `usage: npm run bench -- NAME [options]

  decode      decoding speed on wasm by depth, compared with llama.cpp
              --model FILE --kv SPECS --depths 0,4096 --threads N --no-peers
  attention   attention on packed pages only
              --device wasm: --kv SPECS --depths 16384 --threads N
              --device webgpu: --kv SPECS --work 64x8192,1x131072 --heads 32/8/128 --split 4 --no-subgroups
  agree       compare the predictions of devices, and of llama.cpp
              --model FILE --text FILE --kv SPECS --positions N --no-peers, or --device webgpu
  memory      resident memory compared with the accounted bytes
              --model FILE --kv SPEC --depths 16384
  e2e         a whole model with random weights on the GPU
              --shape llama-8b --kv SPECS --depths 0,32768 --batch 48x4096 --prompt N --chunk N --breakdown
  matmul      matrix products on the GPU
              --rows 1,8,48,512
  quality     all codecs on several kinds of text, as a page of tables; the same command continues a stopped run
              --model FILE --device webgpu --profile FILE --texts DIR or name=path[:special][:skip],... --rows 4
              --kv SPECS --context 2048 --part tables,prefill,ablations,pictures --transfer name=profile,...
              --out docs/quality.md --from results.json,... (render again, merge)

  --json prints JSON. The default model and text are in ../shared.`;
const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    model: { type: 'string', default: '../shared/models/SmolLM2-135M-Instruct.Q4_1.gguf' },
    text: { type: 'string', default: '../shared/data/wikitext2-valid.txt' },
    kv: { type: 'string', default: specs },
    depths: { type: 'string', default: '0,4096,16384' },
    threads: { type: 'string', default: '2' },
    device: { type: 'string' },
    work: { type: 'string', default: '1x131072,8x32768,32x8192,64x8192' },
    heads: { type: 'string', default: '32/8/128' },
    split: { type: 'string', default: '4' },
    subgroups: { type: 'boolean', default: true },
    shape: { type: 'string', default: 'llama-8b' },
    batch: { type: 'string', default: '48x4096' },
    prompt: { type: 'string', default: '4096' },
    chunk: { type: 'string', default: '512' },
    breakdown: { type: 'boolean', default: false },
    positions: { type: 'string', default: '2048' },
    rows: { type: 'string' },
    texts: { type: 'string' },
    context: { type: 'string', default: '2048' },
    profile: { type: 'string' },
    transfer: { type: 'string' },
    part: { type: 'string' },
    out: { type: 'string', default: 'docs/quality.md' },
    from: { type: 'string' },
    peers: { type: 'boolean', default: true },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', short: 'h', default: false },
  },
  allowNegative: true,
});

const benches: Record<string, (options: typeof values) => Promise<void>> = {
  decode: benchDecode,
  agree: options =>
    benchAgree({ ...options, device: options.device ?? 'wasm', kv: options.kv === specs ? 'f16' : options.kv }),
  attention: options =>
    (options.device ?? 'webgpu') === 'webgpu' ? benchWebGpuAttention(options) : benchAttention(options),
  memory: options => benchMemory({ ...options, kv: options.kv === specs ? 'tq4' : options.kv }),
  e2e: benchWebGpuE2e,
  matmul: ({ rows = '1,4,8,16,48,128,512', json }) => benchWebGpuMatmul({ rows, json }),
  quality: options => benchQuality({ ...options, kv: options.kv === specs ? undefined : options.kv }),
};
const bench = benches[positionals[0]];
if (values.help) {
  console.log(usage);
  process.exit();
}
if (!bench) {
  console.error(usage);
  process.exit(1);
}
try {
  await bench(values);
} catch (error) {
  if (!(error instanceof KvasirError)) throw error;
  console.error(`bench: ${error.message}`);
  process.exitCode = 1;
}
