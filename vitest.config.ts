import { existsSync } from 'node:fs';
import { defineConfig } from 'vitest/config';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

// Debian's chromium package has SwiftShader, a Vulkan driver for the CPU, and a loader: the GPU of the tests unless
// VK_ICD_FILENAMES names another. The variables must be set before the test processes start.
const chromium = '/usr/lib/chromium';
if (!process.env.VK_ICD_FILENAMES && existsSync(`${chromium}/vk_swiftshader_icd.json`)) {
  process.env.VK_ICD_FILENAMES = `${chromium}/vk_swiftshader_icd.json`;
  process.env.LD_LIBRARY_PATH = [process.env.LD_LIBRARY_PATH, chromium].filter(Boolean).join(':');
  // Without code that clears workgroup memory, SwiftShader compiles kernels in half the time. No kernel reads what it has not
  // written: the tests would see what the kernel before has left there.
  process.env.KVASIR_DAWN_FEATURES ??= 'disable_workgroup_init';
}

/** The files that take more than half a minute in `npm test` or `npm run test:all`: the last to start must be short. */
const LONGEST = [
  'src/codec/codec.test.ts',
  'test/webgpu/attention-int8.test.ts',
  'test/webgpu/attention-precise.test.ts',
  'test/webgpu/attention-shapes.test.ts',
  'test/same-text.test.ts',
  'test/clients.test.ts',
  'test/webgpu/lifetimes.test.ts',
  'test/webgpu/matmul.test.ts',
  'test/webgpu/device.test.ts',
  'test/webgpu/engine.test.ts',
  'test/wasm/attention.test.ts',
  'test/guard.test.ts',
  'test/vector-cache.test.ts',
  'test/scheduler.test.ts',
  'test/structured.test.ts',
  'test/package-install.test.ts',
  'test/cli-sessions.test.ts',
  'test/cli.test.ts',
  'test/calibrate.test.ts',
];

class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const rank = ({ moduleId }: TestSpecification) => {
      const at = LONGEST.findIndex(name => moduleId.endsWith(name));
      return at < 0 ? LONGEST.length : at;
    };
    return (await super.sort(files)).sort((a, b) => rank(a) - rank(b));
  }
}

/**
 * Only in `npm run test:all`, which CI runs, and `npm run test:long`, so that `npm test` takes minutes: they install
 * packages, start many processes or browsers, or repeat on the software GPU or against llama.cpp what quicker tests check
 * by one representative.
 */
const FULL_ONLY = [
  'test/architectures.test.ts',
  'test/package-install.test.ts',
  'test/clients.test.ts',
  'test/bundlers.test.ts',
  'test/browser-robustness.test.ts',
  'test/browser-tiers.test.ts',
  'test/web/hosting.test.ts',
  'test/web/robustness.test.ts',
  'test/cli-cache.test.ts',
  'test/cli-sessions.test.ts',
  'test/demo.test.ts',
  'test/package.test.ts',
  'test/sinks.test.ts',
  'test/smollm2.test.ts',
  'test/tokenizer.oracle.test.ts',
  'test/webgpu/compile-subgroups.test.ts',
  'test/webgpu/limits.test.ts',
  'test/webgpu/matmul.test.ts',
  'test/webgpu/sealing.test.ts',
  'test/webgpu/subgroup-matrices.test.ts',
];
const excluded = process.env.KVASIR_ALL === '1' || process.env.KVASIR_LONG === '1' ? [] : FULL_ONLY;

/**
 * Mock modules or set flags of V8, which would affect other files, or measure what garbage of others would affect: each gets
 * a process of its own.
 */
const ISOLATED = [
  'src/store/disk-start.test.ts',
  'src/hub/cache.test.ts',
  'test/wasm/addresses.test.ts',
  'test/wasm/dot-add.test.ts',
];

/**
 * Start browsers or package managers. On a loaded machine one of these may stall, so in CI a test that fails is run once
 * more; the report names those that needed it. Nothing else is run again: a race would pass on its second try.
 */
const BROWSERS = [
  'test/bench-browser.test.ts',
  'test/browser*.test.ts',
  'test/bundlers.test.ts',
  'test/clients.test.ts',
  'test/deploy-image.test.ts',
  'test/package-install.test.ts',
  'test/web/app.test.ts',
  'test/web/hosting.test.ts',
  'test/web/robustness.test.ts',
];

/** Start terminals, servers or other programs of ours. */
const PROGRAMS = [
  'test/bench-serve.test.ts',
  'test/chat.test.ts',
  'test/cli.test.ts',
  'test/cli-*.test.ts',
  'test/deploy.test.ts',
  'test/engine-process.test.ts',
  'test/examples.test.ts',
  'test/models.test.ts',
  'test/server/*.test.ts',
  'test/tiers-cluster.test.ts',
];

export default defineConfig({
  test: {
    testTimeout: 60_000,
    hookTimeout: 60_000,
    sequence: { sequencer: LongestFirst },
    // All cores: by default vitest leaves one idle.
    maxWorkers: '100%',
    projects: [
      // Files that run in the same process share the modules of src, which are loaded, compiled and optimized once.
      {
        extends: true,
        test: {
          name: 'shared',
          include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
          exclude: [...BROWSERS, ...PROGRAMS, ...ISOLATED, ...excluded],
          isolate: false,
        },
      },
      {
        extends: true,
        test: { name: 'browsers', include: BROWSERS, exclude: excluded, isolate: false, retry: process.env.CI ? 1 : 0 },
      },
      { extends: true, test: { name: 'programs', include: PROGRAMS, exclude: excluded, isolate: false } },
      { extends: true, test: { name: 'isolated', include: ISOLATED } },
    ],
  },
});
