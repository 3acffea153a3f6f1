/** `kvasir doctor`: what this machine has, and what it lacks. */
import { arch, availableParallelism, cpus, freemem, platform, release, totalmem } from 'node:os';
import type { Command } from 'commander';
import { memoryLimit } from '../engine/budget.ts';
import { listDevices } from '../kernel/open.ts';
import { wasmSupport } from '../kernel/wasm/support.ts';
import { findAdapter } from '../kernel/webgpu/adapter.ts';
import { measureCopy } from '../kernel/webgpu/bandwidth.ts';
import { cacheDir, cachedModels } from '../model/hub/index.ts';
import { formatBytes, formatFileSize } from '../units.ts';

export function addDoctor(program: Command): void {
  program
    .command('doctor')
    .description('what this machine can do: devices, memory, models')
    .option('--json', 'the findings as JSON')
    .action(async ({ json }: { json?: boolean }) => {
      const found = await examine();
      console.log(json ? JSON.stringify(found, null, 1) : render(found));
    });
}

async function examine() {
  return {
    node: process.version,
    system: `${platform()} ${release()}, ${arch()}`,
    cpu: cpus()[0]?.model.trim() ?? 'unknown',
    cores: availableParallelism(),
    memory: { total: totalmem(), free: freemem(), limit: await memoryLimit() },
    wasm: await wasmSupport(),
    gpu: await examineGpu(),
    devices: await listDevices(),
    cache: {
      folder: cacheDir(process.env),
      models: (await cachedModels()).map(({ name, bytes }) => ({ name, bytes })),
    },
  };
}

/** The adapter, and what it copies a second; or why there is none. */
async function examineGpu() {
  const found = await findAdapter();
  return typeof found === 'string' ? found : { ...found.info, copy: await measureCopy() };
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

function render({
  node,
  system,
  cpu,
  cores,
  memory,
  wasm,
  gpu,
  devices,
  cache,
}: Awaited<ReturnType<typeof examine>>): string {
  const yes = (has: boolean) => (has ? 'yes' : 'no');
  const line = (name: string, text: string) => `${name.padEnd(10)}${text}`;
  const models = cache.models.map(({ name, bytes }) => `${name} (${formatFileSize(bytes)})`);
  return [
    line('node', node),
    line('system', system),
    line('cpu', `${cpu}, ${cores} core${cores === 1 ? '' : 's'}`),
    line('memory', `${formatBytes(memory.total)}, ${formatBytes(memory.limit)} of it for a model now`),
    line('wasm', `SIMD ${yes(wasm.simd)}, relaxed SIMD ${yes(wasm.relaxedSimd)}, threads ${yes(wasm.sharedMemory)}`),
    ...renderGpu(gpu).map((text, i) => line(i === 0 ? 'gpu' : '', text)),
    ...devices.map(({ name, about, missing, unwanted }, i) => {
      const text = unwanted === undefined ? about : `${about}, only if asked for: ${unwanted}`;
      return line(i === 0 ? 'devices' : '', `${name}: ${missing === undefined ? text : `not available: ${missing}`}`);
    }),
    line('cache', cache.folder),
    ...(models.length > 0 ? models : ['no models yet: kvasir pull org/repo']).map(text => line('', text)),
  ].join('\n');
}
