/** WGSL names that the loops over pages share with the stages that read keys and values. */

export type Side = 'key' | 'value';

/** Byte offset of a page in the pool. */
export const pageStart = (side: Side): string => `${side}_page`;

/** Byte offset of the head's block of that page. */
export const blockStart = (side: Side): string => `${side}_block`;
