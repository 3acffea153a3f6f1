import { fileURLToPath } from 'node:url';

/** The small model of the package. */
export const mimir: string = fileURLToPath(new URL('../../models/mimir.gguf', import.meta.url));
