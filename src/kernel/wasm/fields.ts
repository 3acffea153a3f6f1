/** The offsets of fields that follow each other, given their sizes in bytes in order; `bytes` is the sum. */
export function fieldOffsets<F extends string>(sizes: Record<F, number>): Record<F | 'bytes', number> {
  let bytes = 0;
  const offsets = Object.entries<number>(sizes).map(([name, size]) => {
    bytes += size;
    return [name, bytes - size];
  });
  return { ...Object.fromEntries(offsets), bytes };
}
