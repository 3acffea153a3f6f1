import { CapacityError, InputError, type KvasirError } from './errors.ts';

/** The typed error for a file or folder that cannot be read or written. */
export function fileError(
  path: string,
  act: string,
  error: NodeJS.ErrnoException,
  advice = 'Check the path.',
): KvasirError {
  const full = (advice: string) => new CapacityError(`${path} cannot be ${act}: ${advice}`, { cause: error });
  if (error.code === 'QuotaExceededError')
    return full("the browser's storage is full. Delete models or sessions that are stored there.");
  if (error.code === 'ENOSPC' || error.code === 'EDQUOT')
    return full('the disk is full. Free some space, or use another disk.');
  return new InputError(`${path} cannot be ${act} (${error.code ?? error.message}). ${advice}`, { cause: error });
}
