/** Reads one file of a zip archive, as far as documents need it: deflate or stored, without encryption and zip64. */

const END = 0x06054b50;
const END_BYTES = 22;
const ENTRY = 0x02014b50;
const ENTRY_BYTES = 46;
const LOCAL_BYTES = 30;
/** Of the comment after the end of the directory. */
const MAX_COMMENT = 0xffff;
const STORED = 0;
const DEFLATED = 8;

/** The bytes of a file; undefined if there is none of this name. Throws if the archive is damaged or the file too large. */
export async function readZipFile(
  archive: Uint8Array<ArrayBuffer>,
  name: string,
  maxBytes: number,
): Promise<Uint8Array | undefined> {
  // Reading past the end throws a RangeError, so a wrong offset is never followed.
  const view = new DataView(archive.buffer, archive.byteOffset, archive.byteLength);
  let end = archive.length - END_BYTES;
  const lowest = Math.max(0, end - MAX_COMMENT);
  while (end >= lowest && view.getUint32(end, true) !== END) end--;
  if (end < lowest) throw new Error('Not a zip archive.');
  const count = view.getUint16(end + 10, true);
  let at = view.getUint32(end + 16, true);
  for (let i = 0; i < count; i++) {
    if (view.getUint32(at, true) !== ENTRY) throw new Error('The directory of the zip archive is damaged.');
    const [nameBytes, extraBytes, commentBytes] = [28, 30, 32].map(offset => view.getUint16(at + offset, true));
    const found = new TextDecoder().decode(archive.subarray(at + ENTRY_BYTES, at + ENTRY_BYTES + nameBytes!));
    if (found === name) return unpack(archive, view, at, maxBytes);
    at += ENTRY_BYTES + nameBytes! + extraBytes! + commentBytes!;
  }
  return undefined;
}

async function unpack(archive: Uint8Array<ArrayBuffer>, view: DataView, entry: number, maxBytes: number) {
  const method = view.getUint16(entry + 10, true);
  const packedBytes = view.getUint32(entry + 20, true);
  const local = view.getUint32(entry + 42, true);
  const start = local + LOCAL_BYTES + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
  const packed = archive.subarray(start, start + packedBytes);
  if (packed.length < packedBytes) throw new Error('The zip archive ends too early.');
  if (method === STORED) return packed;
  if (method !== DEFLATED) throw new Error(`Unknown compression ${method} in a zip archive.`);
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let bytes = 0;
  // A small archive can unpack to any size.
  for await (const part of chunksOf(new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw')))) {
    bytes += part.length;
    if (bytes > maxBytes) throw new Error('A file in a zip archive is too large.');
    parts.push(part);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Not every browser iterates over streams. */
async function* chunksOf<T>(stream: ReadableStream<T>): AsyncGenerator<T> {
  const reader = stream.getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } finally {
    await reader.cancel().catch(() => {});
  }
}
