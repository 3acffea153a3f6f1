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
  'test/webgpu/engine.test.ts',
  'test/wasm/attention.test.ts',
  'test/vector-cache.test.ts',
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

/** Installs packages: only in `npm run test:all` and `npm run test:long`. */
const INSTALLS = ['test/package-install.test.ts', 'test/clients.test.ts'];
const excluded = process.env.KVASIR_ALL === '1' || process.env.KVASIR_LONG === '1' ? [] : INSTALLS;

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
      { extends: true, test: { name: 'system', include: ['test/**/*.test.ts', ...MOCKS], exclude: excluded } },
    ],
  },
});
