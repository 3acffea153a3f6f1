/**
 * `kvasir doctor`: what this machine has and lacks, and the generated WebGPU kernels of a codec. The kernels are imported
 * when it needs them: they are a fifth of all modules, and every other command would load them, too.
 */
import { arch, availableParallelism, cpus, freemem, platform as osName, release, totalmem } from 'node:os';
import type { Command } from 'commander';
import { leafLayout } from '../cache/leaf.ts';
import { createCodec, placeholderLearned } from '../codec/kv.ts';
import { createRopeFrequencies } from '../codec/parts/rope.ts';
import { parseSpec } from '../codec/spec.ts';
import { cacheDir, listModels } from '../hub.ts';
import { listDevices } from '../kernel/open.ts';
import { wasmSupport } from '../kernel/wasm/support.ts';
import { findAdapter } from '../kernel/webgpu/adapter.ts';
import { platform } from '../platform/node.ts';
import { parseTiers, type Tier } from '../store/tiers.ts';
import { formatBytes, formatFileSize, parseCount } from '../util/units.ts';
import { examineTiers, formatTierReport } from './doctor-tiers.ts';
import { formatPlural, printResult } from './table.ts';

export function addDoctor(program: Command): void {
  program
    .command('doctor')
    .description('show what this machine can do: devices, memory, models')
    .option('--json', 'print the report as JSON')
    .option('--tier <list>', 'also try these tiers: host=1GiB,disk=/dir:50GiB,redis=redis://host:6379', parseTiers)
    .option('--wgsl <spec>', 'print the WebGPU kernels that seal and read a codec instead; needs no GPU')
    .option('-d, --dim <n>', 'with --wgsl: head dimension', parseCount, 128)
    .option('--page-tokens <n>', 'with --wgsl: tokens per page', parseCount, 128)
    .option('--rows <n>', 'with --wgsl: new tokens per step; 1 is decoding, more is a prompt', parseCount, 1)
    .option('--no-subgroups', 'with --wgsl: for a GPU without subgroups (default: subgroups of 32)')
    .option('--precise', 'with --wgsl: kernels that read pages as floats')
    .addHelpText(
      'after',
      '\nExamples:\n  kvasir doctor\n  kvasir doctor --wgsl tq4\n  kvasir doctor --wgsl kivi2g32 --no-subgroups',
    )
    .action(async (options: DoctorOptions) => {
      if (options.wgsl !== undefined) console.log(await codecWgsl(options.wgsl, options));
      else printResult(options.json, await examine(options.tier), render);
    });
}

interface DoctorOptions {
  json?: boolean;
  tier?: Tier[];
  wgsl?: string;
  dim: number;
  pageTokens: number;
  rows: number;
  subgroups: boolean;
  precise?: boolean;
}

/** With placeholders for what a profile holds: only a few constants in the kernels depend on it. */
async function codecWgsl(name: string, { dim, pageTokens, rows, subgroups, precise }: DoctorOptions): Promise<string> {
  const shape = { headDim: dim, kvHeads: 2, pageTokens, ropeFrequencies: createRopeFrequencies(dim) };
  const spec = parseSpec(name);
  const [layer] = leafLayout([createCodec(spec, shape, placeholderLearned(spec, shape))]).layers;
  const model = { headDim: dim, heads: 8, kvHeads: 2, pageTokens, precise, subgroupSize: subgroups ? 32 : 0 };
  const { codecKernels, dumpKernel } = await import('../kernel/webgpu/dump.ts');
  const kernels = await codecKernels(layer, rows, model);
  return kernels.map(dumpKernel).join('\n\n');
}

async function examine(tiers: readonly Tier[] = []) {
  return {
    node: process.version,
    system: `${osName()} ${release()}, ${arch()}`,
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: availableParallelism(),
    memory: { total: totalmem(), free: freemem(), limit: platform.memoryLimit() },
    wasm: wasmSupport(),
    gpu: await examineGpu(),
    devices: await listDevices(),
    tiers: await examineTiers(tiers),
    cache: {
      folder: cacheDir(process.env),
      models: (await listModels()).map(({ name, bytes }) => ({ name, bytes })),
    },
  };
}

/** The adapter and its copy bandwidth, or why there is none. */
async function examineGpu() {
  const found = await findAdapter();
  if (typeof found === 'string') return found;
  const { measureCopy } = await import('../kernel/webgpu/bandwidth.ts');
  return { ...found.info, copy: await measureCopy() };
}

function renderGpu(gpu: Awaited<ReturnType<typeof examineGpu>>): string[] {
  if (typeof gpu === 'string') return [`none: ${gpu}`];
  const { name, software, subgroups, f16, limits, copy, features } = gpu;
  return [
    `${name}${software ? ' (runs on the CPU)' : ''}, copies ${formatBytes(copy)}/s`,
    `subgroups ${subgroups || 'no'}, f16 ${f16 ? 'yes' : 'no'}, bindings ${formatBytes(limits.binding)}, buffers ` +
      `${formatBytes(limits.buffer)}, workgroups of ${limits.invocations} with ${formatBytes(limits.workgroupMemory)}`,
    features.join(' '),
  ];
}

function render(report: Awaited<ReturnType<typeof examine>>): string {
  const { node, system, cpu, cores, memory, wasm, gpu, devices, tiers, cache } = report;
  const yes = (has: boolean) => (has ? 'yes' : 'no');
  const line = (name: string, text: string) => `${name.padEnd(10)}${text}`;
  const models = cache.models.map(({ name, bytes }) => `${name} (${formatFileSize(bytes)})`);
  return [
    line('node', node),
    line('system', system),
    line('cpu', `${cpu}, ${formatPlural(cores, 'core')}`),
    line('memory', `${formatBytes(memory.total)}, ${formatBytes(memory.limit)} of it available for a model`),
    line(
      'wasm',
      `SIMD ${yes(wasm.simd)}, relaxed SIMD ${yes(wasm.relaxedSimd)}, int8 dot products ${yes(wasm.dotAdd)}, ` +
        `256-bit vectors ${yes(wasm.wide)}, threads ${yes(wasm.sharedMemory)}`,
    ),
    ...renderGpu(gpu).map((text, i) => line(i === 0 ? 'gpu' : '', text)),
    ...devices.map(({ name, about, missing, unwanted }, i) => {
      const text = unwanted === undefined ? about : `${about}, only on request: ${unwanted}`;
      return line(
        i === 0 ? 'devices' : '',
        `${name}: ${missing === undefined ? text : missing === gpu ? 'not available' : `not available: ${missing}`}`,
      );
    }),
    ...tiers.map((tier, i) => line(i === 0 ? 'tiers' : '', formatTierReport(tier))),
    line('cache', cache.folder),
    ...(models.length > 0 ? models : ['no models yet: kvasir pull org/repo']).map(text => line('', text)),
  ].join('\n');
}
