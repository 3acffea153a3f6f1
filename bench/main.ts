/** `npm run bench -- NAME [options]`: one file per benchmark; `--help` lists them. */
import { parseArgs } from 'node:util';
import { KvasirError } from '../src/util/errors.ts';
import { benchAgree } from './agree.ts';
import { benchArchitectures } from './architectures.ts';
import { benchArrival } from './arrival.ts';
import { benchAttention } from './attention.ts';
import { benchBatch } from './batch.ts';
import { INSTALL_WLLAMA } from './browser/open-page.ts';
import { benchBrowser } from './browser.ts';
import { benchDecode } from './decode.ts';
import { benchGrammar } from './grammar.ts';
import { benchMasks } from './masks.ts';
import { benchMemory } from './memory.ts';
import { benchPrefix } from './prefix.ts';
import { benchQuality } from './quality.ts';
import { benchServe } from './serve.ts';
import { benchSpeculate } from './speculate.ts';
import { benchStores } from './stores.ts';
import { benchTiers } from './tiers.ts';
import { benchTrace } from './trace.ts';
import { benchWebGpuAttention } from './webgpu-attention.ts';
import { benchWebGpuE2e } from './webgpu-e2e.ts';
import { benchWebGpuMatmul } from './webgpu-matmul.ts';
import { benchWeights } from './weights.ts';
import { benchWgsl } from './wgsl.ts';

const specs = 'f16,tq4,tq4u,tq2,tq2u';
const depths = '0,4096,16384';
const usage = `usage: npm run bench -- NAME [options]

  decode      decoding speed on wasm by depth, compared with llama.cpp
              --model FILE --kv SPECS --depths 0,4096 --threads N --no-peers
  weights     weight types and mixtures of experts: small models of one shape with random weights, compared with llama.cpp
              --models Q4_K_M,Q6_K --threads N
  browser     wasm in Chromium, compared with Node and with wllama (llama.cpp in WebAssembly), if it is in DIR:
              ${INSTALL_WLLAMA}
              --model FILE --kv SPECS --depths 0,4096,8192 --threads N --tokens 32 --rounds 3
              --wllama DIR --minutes 2 (for its prompts; deeper, its speed is estimated)
  batch       decoding speed of several sequences together on wasm, compared with llama.cpp
              --model FILE --kv SPECS --depths 0,1024,4096 --sequences 1,2,4,8,16 --threads N --tokens 32 --rounds 3
              --no-peers
  arrival     a long prompt arrives while chats are being written: gaps between their tokens, and the prompt's time
              --model FILE --kv SPEC --prompt 16384 --chats 4 --tokens 64 --share .9 --threads N
  speculate   decoding speed with and without guessed tokens, by how much the answer repeats
              --model FILE --kv SPEC --tokens 256 --rounds 3 --threads N
  prefix      time to first token of a prompt whose beginning is known, and of an edited chat
              --model FILE --kv SPEC --prompt 4096 --rounds 3 --threads N
  tiers       decoding with and without tiers, and the time to first token of a prompt from each tier
              --model FILE --kv SPEC --prompt 4096 --tokens 256 --rounds 3 --threads N --url redis://127.0.0.1:6379 (default: starts one)
  trace       hit rates of eviction policies on a request trace: a file, or a synthetic one by name
              FILE --capacity 1000,3000 --policies lru,graph,belady --svg FILE --requests N
              --edges temporal: instead, how many leaves the graph suggests to prefetch, and how many of them are used
  stores      how fast leaves come back from each tier, against memcpy, dd and pipelined GETs of the same bytes
              --leaf-bytes 64KiB,1MiB --leaves 1,16,256 --rounds 3 --url redis://127.0.0.1:6379 (default: starts one)
  attention   attention on packed pages only
              --device wasm: --kv SPECS --depths 16384 --threads N
              --device webgpu: --kv SPECS --work 64x8192,1x131072 --heads 32/8/128 --split 4 --no-subgroups
  agree       compare the predictions of devices, and of llama.cpp
              --model FILE --text FILE --kv SPECS --positions N --no-peers, or --device webgpu
  architectures
              every architecture as a tiny random model: divergence from llama.cpp on each device, answers from the
              cache and from a session, and what windows save; npm run docs makes a table of docs/architectures.json
              --device NAME --out docs/architectures.json
  grammar     time per token of answers that follow a JSON Schema, compared with free ones
              --model FILE --kv SPEC --sequences 1,8 --rounds 3 --threads N
  masks       JSON Schemas that can be followed, and the time per mask, by the cases of MaskBench
              --model FILE --data DIR --every 1
  memory      resident memory compared with the accounted bytes
              --model FILE --kv SPEC --depths 16384
  e2e         a whole model with random weights on the GPU
              --shape llama-8b, qwen3-30b-a3b, ... --kv SPECS --depths 0,32768 --batch 8x4096,48x4096 --prompt N --chunk N --breakdown
  matmul      matrix products on the GPU
              --rows 1,8,48,512
  wgsl        no measurement: prints the WebGPU kernels that seal and read a codec, without a GPU
              SPEC --rows 1 --heads 32/8/128 --no-subgroups --precise
  quality     all codecs on several kinds of text, as a page of tables; the same command continues a stopped run
              --model FILE --device webgpu --profile FILE --texts DIR or name=path[:special][:skip],... --rows 4
              --kv SPECS --context 2048 --part tables,prefill,ablations,pictures --transfer name=profile,...
              --out docs/quality.md --from results.json,... (render again, merge runs and models)

  serve       requests at fixed rates to an OpenAI-compatible server: chats over shared documents, or a trace
              --url URL, or --model FILE --kv SPEC --kv-memory 128MiB --context 8192 --threads N (starts kvasir serve)
              --rates 0.5,1 --rounds 3 --limit 280 (seconds per server, load and round) --chats 12 --turns 4 --documents 4 --prompt 3000 --tokens 32 --api-key KEY
              --trace FILE --requests 100 --scale 16 (lengths are divided by it)
              --clients 1,20 (instead of --rates): each asks --turns questions, one after the other
              --system 2000: all clients have a system prompt of so many tokens in common
              --compare URL, or --llama-server FILE --cache-type q8_0 --slots 4 (starts it with the same KV bytes)

  --json prints JSON. The default model and text are in ../shared.`;
const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: {
    model: { type: 'string', default: '../shared/models/SmolLM2-135M-Instruct.Q4_1.gguf' },
    text: { type: 'string', default: '../shared/data/wikitext2-valid.txt' },
    kv: { type: 'string' },
    depths: { type: 'string' },
    sequences: { type: 'string' },
    tokens: { type: 'string' },
    rounds: { type: 'string', default: '3' },
    chats: { type: 'string' },
    share: { type: 'string' },
    turns: { type: 'string', default: '4' },
    documents: { type: 'string', default: '4' },
    wllama: { type: 'string' },
    minutes: { type: 'string', default: '2' },
    url: { type: 'string' },
    compare: { type: 'string' },
    'llama-server': { type: 'string' },
    'cache-type': { type: 'string', default: 'q8_0' },
    slots: { type: 'string', default: '4' },
    'api-key': { type: 'string' },
    'kv-memory': { type: 'string', default: '128MiB' },
    rates: { type: 'string', default: '0.5' },
    // fetch gives up after 300 s without an answer.
    limit: { type: 'string', default: '280' },
    clients: { type: 'string' },
    system: { type: 'string', default: '0' },
    trace: { type: 'string' },
    requests: { type: 'string' },
    capacity: { type: 'string' },
    policies: { type: 'string' },
    edges: { type: 'string' },
    svg: { type: 'string' },
    scale: { type: 'string', default: '16' },
    data: { type: 'string' },
    every: { type: 'string', default: '1' },
    models: { type: 'string' },
    'leaf-bytes': { type: 'string', default: '64KiB,1MiB' },
    leaves: { type: 'string', default: '1,16,256' },
    threads: { type: 'string', default: '2' },
    device: { type: 'string' },
    work: { type: 'string', default: '1x131072,8x32768,32x8192,64x8192' },
    heads: { type: 'string', default: '32/8/128' },
    split: { type: 'string', default: '4' },
    subgroups: { type: 'boolean', default: true },
    precise: { type: 'boolean', default: false },
    shape: { type: 'string', default: 'llama-8b' },
    batch: { type: 'string', default: '48x4096' },
    prompt: { type: 'string' },
    chunk: { type: 'string', default: '512' },
    breakdown: { type: 'boolean', default: false },
    positions: { type: 'string', default: '2048' },
    rows: { type: 'string' },
    texts: { type: 'string' },
    context: { type: 'string' },
    profile: { type: 'string' },
    transfer: { type: 'string' },
    part: { type: 'string' },
    out: { type: 'string' },
    from: { type: 'string' },
    peers: { type: 'boolean', default: true },
    json: { type: 'boolean', default: false },
    help: { type: 'boolean', short: 'h', default: false },
  },
  allowNegative: true,
});

const benches: Record<string, (options: typeof values) => Promise<void>> = {
  decode: options => benchDecode({ kv: specs, depths, ...options }),
  weights: options => benchWeights(options),
  wgsl: options => benchWgsl({ rows: '1', ...options, kv: positionals[1] ?? 'tq4' }),
  browser: options => benchBrowser({ kv: 'tq4,f16', depths: '0,4096,8192', tokens: '32', ...options }),
  batch: options => benchBatch({ kv: 'tq4', depths: '0,1024,4096', sequences: '1,2,4,8,16', tokens: '32', ...options }),
  arrival: options => benchArrival({ kv: 'tq4', prompt: '16384', chats: '4', tokens: '64', ...options }),
  prefix: options => benchPrefix({ kv: 'tq4', prompt: '4096', ...options }),
  speculate: options => benchSpeculate({ kv: 'tq4', tokens: '256', ...options }),
  stores: options => benchStores(options),
  trace: options => benchTrace({ ...options, trace: positionals[1] }),
  tiers: options => benchTiers({ kv: 'tq4', prompt: '4096', ...options }),
  agree: options => benchAgree({ kv: 'f16', device: 'wasm', ...options }),
  architectures: options => benchArchitectures(options),
  attention: options =>
    (options.device ?? 'webgpu') === 'webgpu'
      ? benchWebGpuAttention({ kv: specs, ...options })
      : benchAttention({ kv: specs, depths, ...options }),
  grammar: options => benchGrammar({ kv: 'tq4', sequences: '1,8', ...options }),
  masks: options => benchMasks(options),
  memory: options => benchMemory({ kv: 'tq4', depths, ...options }),
  e2e: options => benchWebGpuE2e({ kv: specs, depths, prompt: '4096', ...options }),
  matmul: ({ rows = '1,4,8,16,48,128,512', json }) => benchWebGpuMatmul({ rows, json }),
  quality: options => benchQuality({ context: '2048', out: 'docs/quality.md', ...options }),
  serve: options =>
    benchServe({ kv: 'tq4', context: '8192', chats: '12', prompt: '3000', tokens: '32', requests: '100', ...options }),
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
