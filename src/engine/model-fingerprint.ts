/** The fingerprint of an open model. */
import { fingerprintFiles, fingerprintSources } from '../model/fingerprint.ts';
import type { Gguf } from '../model/gguf.ts';
import { kvasirCacheDir } from '../plan/profile-store.ts';

/** sha256 of the model's files. It is remembered for files on disk; other inputs are read and hashed. */
export async function modelFingerprint({
  paths,
  gguf,
}: {
  paths: readonly string[];
  gguf: Pick<Gguf, 'shards'>;
}): Promise<string> {
  return paths.length > 0
    ? fingerprintFiles(paths, { cacheDir: await kvasirCacheDir() })
    : fingerprintSources(gguf.shards);
}
