/** `kvasir doctor`: what this machine has and lacks. */
import { arch, availableParallelism, cpus, freemem, platform as osName, release, totalmem } from 'node:os';
import type { Command } from 'commander';
import { cacheDir, listModels } from '../hub.ts';
import { listDevices } from '../kernel/open.ts';
import { wasmSupport } from '../kernel/wasm/support.ts';
import { findAdapter } from '../kernel/webgpu/adapter.ts';
import { platform } from '../platform/node.ts';
import { parseTiers, type Tier } from '../store/tiers.ts';
import { formatBytes, formatFileSize } from '../util/units.ts';
import { examineTiers, formatTierReport } from './doctor-tiers.ts';
import { formatPlural, printResult } from './table.ts';

export function addDoctor(program: Command): void {
  program
    .command('doctor')
    .description('show what this machine can do: devices, memory, models')
    .option('--json', 'print the report as JSON')
    .option('--tier <list>', 'also try these tiers: host=1GiB,disk=/dir:50GiB,redis=redis://host:6379', parseTiers)
    .action(async ({ json, tier }: { json?: boolean; tier?: Tier[] }) =>
      printResult(json, await examine(tier), render),
    );
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
