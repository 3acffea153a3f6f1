import { warnRenamed } from './warn.ts';

export * from '../hub.ts';

warnRenamed('kvasir/hub', 'kvasir');
