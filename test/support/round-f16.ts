import { fromF16, toF16 } from '../../src/kernel/float.ts';

/** The nearest f16. */
export const roundF16 = (x: number): number => fromF16(toF16(x));
