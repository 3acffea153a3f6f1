/** Lifetimes on webgpu, only in `npm run test:all`: SwiftShader is slow. */
import { describe } from 'vitest';
import { testLifetimes } from '../support/lifetimes.ts';
import { ALL_CASES } from '../support/matrix.ts';
import { describeGpu } from './gpu.ts';

if (ALL_CASES) describeGpu('on webgpu', () => testLifetimes('webgpu'));
else describe.skip('on webgpu (skipped: only in npm run test:all)', () => testLifetimes('webgpu'));
