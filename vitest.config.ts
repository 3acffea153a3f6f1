import { existsSync } from 'node:fs';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

// Debian's chromium package has SwiftShader, a Vulkan driver for the CPU, and a loader: the GPU of the tests unless
// VK_ICD_FILENAMES names another. Both variables must be set before the test processes start.
const chromium = '/usr/lib/chromium';
if (!process.env.VK_ICD_FILENAMES && existsSync(`${chromium}/vk_swiftshader_icd.json`)) {
  process.env.VK_ICD_FILENAMES = `${chromium}/vk_swiftshader_icd.json`;
  process.env.LD_LIBRARY_PATH = [process.env.LD_LIBRARY_PATH, chromium].filter(Boolean).join(':');
}

/** Takes minutes in the full matrix, on one core: it must not be the last to start. */
const LONGEST = 'src/codec/codec.test.ts';

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files);
    const isLongest = ({ moduleId }: TestSpecification) => moduleId.endsWith(LONGEST);
    return [...sorted.filter(isLongest), ...sorted.filter(file => !isLongest(file))];
  }
}

/** Mocks node:fs, so it needs modules of its own. */
const MOCKS = ['src/model/hub/cache.test.ts'];

export default defineConfig({
  test: {
    testTimeout: 60_000,
    sequence: { sequencer: LongestFirst },
    // All cores: by default vitest leaves one idle.
    maxWorkers: '100%',
    projects: [
      // Unit tests share a module graph per thread, which saves loading the sources once per file.
      {
        extends: true,
        test: { name: 'unit', include: ['src/**/*.test.ts'], exclude: MOCKS, isolate: false, pool: 'threads' },
      },
      { extends: true, test: { name: 'system', include: ['test/**/*.test.ts', ...MOCKS] } },
    ],
  },
});
