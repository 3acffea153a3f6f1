/**
 * Every architecture, as tiny models with random weights: how far its predictions are from llama.cpp's on each device, whether
 * an answer is the same, bit for bit, when its prompt is found in the cache or restored from a session, and what its windows
 * save. Writes the numbers from which `npm run docs` makes a table, after every model; what the file has is not measured again.
 */
import { readFile, writeFile } from 'node:fs/promises';
import { formatTable } from '../src/cli/table.ts';
import type { DeviceName } from '../src/kernel/open.ts';
import { findAdapter } from '../src/kernel/webgpu/adapter.ts';
import { readConfig } from '../src/model/config.ts';
import { readGguf } from '../src/model/gguf.ts';
import { bytesSource } from '../src/model/source.ts';
import { memoryReport } from '../src/plan/memory.ts';
import {
  answersThreeWays,
  architectureModels,
  divergencesFromLlamaCpp,
  ORACLE_TOKENS,
} from '../test/support/architecture-models.ts';
import { writeGguf } from '../test/support/gguf-writer.ts';
import { type TinyOptions, tinyModel } from '../test/support/tiny-model.ts';

interface Options {
  /** Names of devices, with commas; otherwise all that there are. */
  device?: string;
  out?: string;
  json: boolean;
}

/** The numbers of one model. */
interface ArchitectureRow {
  name: string;
  /** From llama.cpp, in nats per token. */
  divergence: Partial<Record<DeviceName, number>>;
  /** Whether answers from the cache and from a session equal those without, bit for bit. */
  sameAnswers: boolean;
  /** Layers with a window: its tokens, and the share of an f16 cache of 32,768 tokens that is left. */
  window?: { tokens: number; share: number };
}

interface Result {
  /** The adapter of webgpu, if there was one. */
  gpu?: string;
  /** Of the prompt. */
  tokens: number;
  layers: number;
  rows: ArchitectureRow[];
}

const CONTEXT = 32_768;
const LAYERS = 12;
/** Windows of well-known models, where they are known; those of the tiny ones are shorter than their prompts. */
const WINDOWS: Record<string, number> = {
  gemma2: 4096,
  gemma3: 512,
  'gpt-oss': 128,
  olmo2: 4096,
  exaone4: 4096,
  'exaone-moe': 128,
};

export async function benchArchitectures({ device, out, json }: Options): Promise<void> {
  const adapter = await findAdapter();
  const all: DeviceName[] = ['js', 'wasm', ...(typeof adapter === 'string' ? [] : (['webgpu'] as const))];
  const devices = all.filter(name => device === undefined || device.split(',').includes(name));
  const known = await readResult(out);
  const gpu = typeof adapter === 'string' ? known?.gpu : adapter.info.name;
  const result: Result = { gpu, tokens: ORACLE_TOKENS, layers: LAYERS, rows: known?.rows ?? [] };
  for (const [name, options] of Object.entries(architectureModels)) {
    const row = result.rows.find(row => row.name === name) ?? (await firstRow(name, options));
    const missing = devices.filter(device => row.divergence[device] === undefined);
    if (missing.length > 0) Object.assign(row.divergence, await divergencesFromLlamaCpp(options, missing));
    if (!result.rows.includes(row)) result.rows.push(row);
    if (out) await writeFile(out, `${JSON.stringify(result, null, 1)}\n`);
    console.error(name);
  }
  console.log(json ? JSON.stringify(result, null, 1) : tableOf(result.rows));
}

const readResult = async (path?: string): Promise<Result | undefined> =>
  path === undefined
    ? undefined
    : readFile(path, 'utf8').then(
        text => JSON.parse(text),
        () => undefined,
      );

/** All but the divergences. */
async function firstRow(name: string, options: TinyOptions): Promise<ArchitectureRow> {
  const { cold, hit, restored } = await answersThreeWays(options, { device: 'wasm', kv: 'tq4', pageTokens: 16 });
  return {
    name,
    divergence: {},
    sameAnswers: [hit, restored].every(({ tokens }) => tokens.join() === cold.tokens.join()),
    window: await windowOf(options),
  };
}

async function windowOf(options: TinyOptions): Promise<ArchitectureRow['window']> {
  const { architecture = 'llama', layers = 0 } = options;
  const key = `${architecture}.attention.sliding_window`;
  const tokens = WINDOWS[architecture] ?? options.metadata?.[key];
  const spec = tinyModel({
    ...options,
    layers: Math.max(layers, LAYERS),
    metadata: { ...options.metadata, ...(options.metadata?.[key] !== undefined && { [key]: tokens }) },
  });
  const { attentionWindows, ...config } = readConfig(await readGguf([bytesSource(writeGguf(spec))]));
  if (attentionWindows.every(window => window === undefined)) return undefined;
  const bytes = (windows?: typeof attentionWindows) =>
    memoryReport('f16', { ...config, attentionWindows: windows }, CONTEXT).totalBytes;
  return { tokens, share: bytes(attentionWindows) / bytes() };
}

function tableOf(rows: readonly ArchitectureRow[]): string {
  const devices = ['js', 'wasm', 'webgpu'] as const;
  return formatTable(
    ['model', ...devices, 'same answers', 'window', 'f16 cache of 32K'],
    rows.map(({ name, divergence, sameAnswers, window }) => [
      name,
      ...devices.map(device => divergence[device]?.toExponential(1) ?? ''),
      sameAnswers ? 'yes' : 'no',
      window ? String(window.tokens) : '',
      window ? `${(100 * window.share).toFixed(1)}%` : '',
    ]),
  );
}
