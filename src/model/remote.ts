/** A model on the hub, of which only what is asked for is downloaded: its headers, to see whether it runs. Node only. */
import type { Hub } from '../hub/http.ts';
import { type RemoteFile, readRange } from '../hub/remote-files.ts';
import { type Gguf, readGguf } from './gguf.ts';
import { type ByteSource, createSource } from './source.ts';

export const openRemoteGguf = (hub: Hub, files: readonly RemoteFile[]): Promise<Gguf> =>
  readGguf(files.map(file => remoteSource(hub, file)));

function remoteSource(hub: Hub, remote: RemoteFile): ByteSource {
  const { repo, file, size, hash } = remote;
  const source = createSource(`${repo}/${file}`, size, (offset, into) => readRange(hub, remote, offset, into));
  // A file outside LFS has a sha1.
  return hash.length === 64 ? { ...source, sha256: hash } : source;
}
