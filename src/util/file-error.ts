import { CapacityError, InputError } from './errors.ts';

/** Throws the typed error for a file that cannot be read or written. */
export function fileError(
  path: string,
  act: 'read' | 'written',
  error: NodeJS.ErrnoException,
  advice = 'Check the path.',
): never {
  if (error.code === 'ENOSPC' || error.code === 'EDQUOT')
    throw new CapacityError(`${path} cannot be written: the disk is full. Free some space, or use another disk.`, {
      cause: error,
    });
  throw new InputError(`${path} cannot be ${act} (${error.code ?? error.message}). ${advice}`, { cause: error });
}
