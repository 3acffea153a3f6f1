/** `kvasir doctor`: what this machine has, and what it lacks. */
import { arch, availableParallelism, cpus, freemem, platform, release, totalmem } from 'node:os';
import type { Command } from 'commander';
import { memoryLimit } from '../engine/budget.ts';
import { listDevices } from '../kernel/open.ts';
import { wasmSupport } from '../kernel/wasm/support.ts';
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
    devices: await listDevices(),
    cache: { folder: cacheDir(process.env), models: await cachedModels() },
  };
}

function render({
  node,
  system,
  cpu,
  cores,
  memory,
  wasm,
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
    ...devices.map(({ name, about, missing }, i) =>
      line(i === 0 ? 'devices' : '', `${name}: ${missing === undefined ? `${about}` : `not to be had: ${missing}`}`),
    ),
    line('cache', cache.folder),
    ...(models.length > 0 ? models : ['no models yet: kvasir pull org/repo']).map(text => line('', text)),
  ].join('\n');
}
