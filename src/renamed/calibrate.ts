import { warnRenamed } from './warn.ts';

export * from '../eval.ts';

warnRenamed('kvasir/calibrate', 'kvasir/eval');
