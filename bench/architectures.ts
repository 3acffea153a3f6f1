/**
 * Every architecture, as tiny models with random weights: how far its predictions are from llama.cpp's on each device, whether
 * an answer is the same, bit for bit, when its prompt is found in the cache or restored from a session, and what its windows
 * save. Writes the numbers from which `npm run docs` makes a table.
 */
import { writeFile } from 'node:fs/promises';
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
  /** Name of one device; otherwise all that there are. */
  device?: string;
  out?: string;
  json: boolean;
}

/** The numbers of one model. */
export interface ArchitectureRow {
  name: string;
  architecture: string;
  /** From llama.cpp, in nats per token. */
  divergence: Partial<Record<DeviceName, number>>;
  /** Whether answers from the cache and from a session equal those without, bit for bit. */
  sameAnswers: boolean;
  /** Layers with a window: its tokens, and the share of an f16 cache of 32,768 tokens that is left. */
  window?: { tokens: number; share: number };
}

const CONTEXT = 32_768;
const LAYERS = 12;
/** Windows of well-known models; those of the tiny ones are shorter than their prompts. */
const WINDOWS: Record<string, number> = { gemma2: 4096, gemma3: 512, 'gpt-oss': 128, olmo2: 4096, exaone4: 4096 };

export async function benchArchitectures({ device, out, json }: Options): Promise<void> {
  const adapter = await findAdapter();
  const all: DeviceName[] = ['js', 'wasm', ...(typeof adapter === 'string' ? [] : (['webgpu'] as const))];
  const devices = all.filter(name => device === undefined || name === device);
  const rows: ArchitectureRow[] = [];
  for (const [name, options] of Object.entries(architectureModels)) {
    const { cold, hit, restored } = await answersThreeWays(options, { device: 'wasm', kv: 'tq4', pageTokens: 16 });
    const row: ArchitectureRow = {
      name,
      architecture: options.architecture ?? 'llama',
      divergence: await divergencesFromLlamaCpp(options, devices),
      sameAnswers: [hit, restored].every(({ tokens }) => tokens.join() === cold.tokens.join()),
      window: await windowOf(options),
    };
    rows.push(row);
    if (!json) console.error(`${name}: ${JSON.stringify(row)}`);
  }
  const gpu = typeof adapter === 'string' ? undefined : adapter.info.name;
  const result = { gpu, tokens: ORACLE_TOKENS, layers: LAYERS, rows };
  console.log(json ? JSON.stringify(result, null, 1) : tableOf(rows, devices));
  if (out) await writeFile(out, `${JSON.stringify(result, null, 1)}\n`);
}

async function windowOf(options: TinyOptions): Promise<ArchitectureRow['window']> {
  const { architecture = 'llama', layers = 0 } = options;
  const tokens = WINDOWS[architecture];
  const key = `${architecture}.attention.sliding_window`;
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

function tableOf(rows: readonly ArchitectureRow[], devices: readonly DeviceName[]): string {
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
