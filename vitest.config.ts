import { existsSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

// Debian's chromium package has SwiftShader, a Vulkan driver for the CPU, and a loader: the GPU of the tests unless
// VK_ICD_FILENAMES names another. The variables must be set before the test processes start.
const chromium = '/usr/lib/chromium';
if (!process.env.VK_ICD_FILENAMES && existsSync(`${chromium}/vk_swiftshader_icd.json`)) {
  process.env.VK_ICD_FILENAMES = `${chromium}/vk_swiftshader_icd.json`;
  process.env.LD_LIBRARY_PATH = [process.env.LD_LIBRARY_PATH, chromium].filter(Boolean).join(':');
  // SwiftShader compiles kernels in half the time without code that clears workgroup memory. No kernel needs it:
  // test/webgpu/workgroup-memory.all.test.ts.
  process.env.KVASIR_DAWN_FEATURES ??= 'disable_workgroup_init';
}

/** Folders and files that take longest: the last to start must be short. */
const LONGEST = [
  ...['/test/webgpu/', '/test/isolated/webgpu', '/test/packages/', '/test/same-text', '/test/wasm/', '/test/browsers/'],
  ...['/src/codec/codec.test', '/test/architectures', '/test/programs/deploy', '/test/hellaswag', '/test/smollm2'],
  ...['/test/structured', '/test/vector-cache', '/test/calibrate', '/test/lifetimes', '/test/cache-interleavings'],
];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification) => {
      const at = LONGEST.findIndex(name => moduleId.includes(name));
      return at < 0 ? LONGEST.length : at;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

/**
 * `*.all.test.ts` run only in `npm run test:all`, which CI runs, and `npm run test:long`, so that `npm test` takes minutes:
 * they install packages, start many processes or browsers, or repeat on the software GPU or against llama.cpp what quicker
 * tests check by one representative.
 */
const isFull = process.env.KVASIR_ALL === '1' || process.env.KVASIR_LONG === '1';
const exclude = isFull ? [] : ['**/*.all.test.ts'];
/** A file of these folders needs other conditions than the rest. */
const APART = ['browsers', 'packages', 'programs', 'isolated'];

export default defineConfig({
  test: {
    // For what hangs: the tests of the software GPU take half a minute when all workers compute.
    testTimeout: 120_000,
    hookTimeout: 120_000,
    // The same for what is waited for.
    expect: { poll: { timeout: 30_000 } },
    globalSetup: 'test/support/temporary-folder.ts',
    setupFiles: ['test/support/setup.ts'],
    sequence: { sequencer: LongestFirst },
    // More than cores: tests of servers, browsers and package managers wait for much of their time.
    maxWorkers: availableParallelism() + 2,
    projects: [
      // Files that run in the same process share the modules of src, which are loaded, compiled and optimized once.
      {
        extends: true,
        test: {
          name: 'shared',
          setupFiles: ['test/support/one-thread.ts'],
          include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
          exclude: [...APART.map(folder => `test/${folder}/**`), ...exclude],
          isolate: false,
        },
      },
      // They start browsers or package managers. On a loaded machine one of these may stall, so in CI a test that fails is
      // run once more; the report names those that needed it. Nothing else is run again: a race would pass on its second try.
      {
        extends: true,
        test: {
          name: 'browsers',
          include: ['test/{browsers,packages}/**/*.test.ts'],
          exclude,
          isolate: false,
          retry: process.env.CI ? 1 : 0,
        },
      },
      // They start terminals, servers or other programs of ours.
      {
        extends: true,
        test: { name: 'programs', include: ['test/programs/**/*.test.ts'], exclude, isolate: false },
      },
      // They mock modules or set flags of V8, which would affect other files, or measure what garbage of others would
      // affect: each gets a process of its own.
      { extends: true, test: { name: 'isolated', include: ['test/isolated/**/*.test.ts'], exclude } },
    ],
  },
});
