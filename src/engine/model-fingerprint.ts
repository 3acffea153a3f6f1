/** The fingerprint of an open model. */
import { fingerprintFiles, fingerprintSources } from '../model/fingerprint.ts';
import type { Gguf } from '../model/gguf.ts';
import type { LoadProgress } from '../model/weights.ts';
import { kvasirCacheDir } from '../plan/profile-store.ts';

export interface FingerprintOptions {
  signal?: AbortSignal;
  /** Called while the files are hashed: not if their hash is known. */
  onProgress?: (progress: LoadProgress) => void;
}

type Shards = Pick<Gguf, 'shards'>;

/** Of models that were hashed. Their files may be replaced later; the model stays what it was. */
const known = new WeakMap<Shards, string>();

/**
 * sha256 of the model's files. It is remembered for files on disk; other inputs are read and hashed. A file that changed
 * after it had been opened is refused, since its hash would be that of another model.
 */
export async function modelFingerprint(
  { paths, gguf }: { paths: readonly string[]; gguf: Shards },
  { signal, onProgress }: FingerprintOptions = {},
): Promise<string> {
  const found = known.get(gguf);
  if (found !== undefined) return found;
  const { shards } = gguf;
  const options = {
    signal,
    onProgress: onProgress && ((progress: Omit<LoadProgress, 'phase'>) => onProgress({ phase: 'hash', ...progress })),
  };
  const opened = shards.map(({ version }) => version);
  const fingerprint =
    paths.length > 0
      ? await fingerprintFiles(paths, { ...options, cacheDir: await kvasirCacheDir(), opened })
      : await fingerprintSources(shards, options);
  known.set(gguf, fingerprint);
  return fingerprint;
}
