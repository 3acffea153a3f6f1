/**
 * Halves multiplied two at a time: a word holds a pair of them. Where the adapter has no halves the same bits are read as floats.
 */
export function pairs(f16: boolean) {
  const type = f16 ? 'vec2<f16>' : 'vec2f';
  return {
    type,
    /** Extensions of WGSL that it takes. */
    enable: f16 ? ['f16'] : [],
    /** The pair that a word holds. */
    of: (word: string): string => (f16 ? `bitcast<vec2<f16>>(${word})` : `unpack2x16float(${word})`),
    /** Twice the same number. */
    all: (x: number): string => `${type}(${x})`,
  };
}
