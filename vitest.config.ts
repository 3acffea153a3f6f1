import { existsSync } from 'node:fs';
import { defineConfig } from 'vitest/config';

// Debian's chromium brings a Vulkan driver that runs on the CPU, and a loader for it: the tests' GPU unless another is
// given. Both must be in the environment before the tests' processes start.
const chromium = '/usr/lib/chromium';
if (!process.env.VK_ICD_FILENAMES && existsSync(`${chromium}/vk_swiftshader_icd.json`)) {
  process.env.VK_ICD_FILENAMES = `${chromium}/vk_swiftshader_icd.json`;
  process.env.LD_LIBRARY_PATH = [process.env.LD_LIBRARY_PATH, chromium].filter(Boolean).join(':');
}

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 60_000,
    // All cores: vitest would leave one of two idle.
    maxWorkers: '100%',
  },
});
