import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['src/**/*.test.ts', 'test/**/*.test.ts'],
    testTimeout: 60_000,
    // All cores: vitest would leave one of two idle.
    maxWorkers: '100%',
  },
});
