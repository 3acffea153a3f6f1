/** f16 values multiplied in pairs: a word holds two. Without shader f16, the same bits are computed as f32. */
export function pairs(f16: boolean) {
  const type = f16 ? 'vec2<f16>' : 'vec2f';
  return {
    type,
    /** WGSL extensions. */
    enable: f16 ? ['f16'] : [],
    /** The pair in a word. */
    of: (word: string): string => (f16 ? `bitcast<vec2<f16>>(${word})` : `unpack2x16float(${word})`),
    /** A pair of the same number. */
    all: (x: number): string => `${type}(${x})`,
  };
}
