/** Lifetimes on webgpu. */
import { testLifetimes } from '../support/lifetimes.ts';
import { describeGpu } from './gpu.ts';

describeGpu('on webgpu', () => testLifetimes('webgpu'));
