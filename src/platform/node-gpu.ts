/** WebGPU in Node: Dawn, the optional package `webgpu`. */
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

/** f16 and exact timestamps where the hardware has them; more of Dawn's features by a variable, such as `dump_shaders`. */
const dawnFlags = (): string[] => {
  const more = process.env.KVASIR_DAWN_FEATURES;
  const features = ['allow_unsafe_apis', 'vulkan_enable_f16_on_nvidia', 'use_vulkan_memory_model'];
  return [
    `enable-dawn-features=${[...features, ...(more ? [more] : [])]}`,
    'disable-dawn-features=timestamp_quantization',
  ];
};

const DAWN_NOT_INSTALLED =
  'the optional package webgpu (Dawn, the WebGPU of Chrome, 130 MB) is not installed: npm install webgpu, with -g ' +
  'for a global kvasir, or npx -p kvasir -p webgpu kvasir ...';

export async function openDawn(): Promise<GPU | string> {
  let path: string;
  try {
    // `require` also looks into NODE_PATH, which bundles use.
    path = createRequire(import.meta.url).resolve('webgpu');
  } catch {
    return DAWN_NOT_INSTALLED;
  }
  if (process.platform === 'linux' && !hasVulkan())
    return 'the Vulkan loader libvulkan.so.1 is missing (on Debian: apt-get install libvulkan1, and a driver)';
  try {
    const dawn: { create(flags: string[]): GPU } = await import(pathToFileURL(path).href);
    return dawn.create(dawnFlags());
  } catch (error) {
    return `the optional package webgpu does not work here: ${(error as Error).message}`;
  }
}

/** Checked here because Dawn prints a warning if it is missing, even for `auto`. */
function hasVulkan(): boolean {
  const folders = (process.env.LD_LIBRARY_PATH ?? '').split(':').filter(Boolean);
  if (folders.some(folder => existsSync(`${folder}/libvulkan.so.1`))) return true;
  try {
    return readFileSync('/etc/ld.so.cache').includes('libvulkan.so.1');
  } catch {
    // Not glibc: let Dawn report it.
    return true;
  }
}
