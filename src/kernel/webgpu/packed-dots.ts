/**
 * The functions of WGSL's language feature `packed_4x8_integer_dot_product`, for adapters that lack it: a shader may
 * declare functions of these names. They are integer functions, so results are identical.
 */

export const PACKED_FEATURE = 'packed_4x8_integer_dot_product';

const FUNCTIONS: Record<string, { text: string; needs?: readonly string[] }> = {
  unpack4xI8: {
    text: 'fn unpack4xI8(e: u32) -> vec4i { return (vec4i(bitcast<i32>(e)) << vec4u(24, 16, 8, 0)) >> vec4u(24); }',
  },
  unpack4xU8: {
    text: 'fn unpack4xU8(e: u32) -> vec4u { return (vec4u(e) >> vec4u(0, 8, 16, 24)) & vec4u(255); }',
  },
  dot4I8Packed: {
    text: 'fn dot4I8Packed(a: u32, b: u32) -> i32 { return dot(unpack4xI8(a), unpack4xI8(b)); }',
    needs: ['unpack4xI8'],
  },
  dot4U8Packed: {
    text: 'fn dot4U8Packed(a: u32, b: u32) -> u32 { return dot(unpack4xU8(a), unpack4xU8(b)); }',
    needs: ['unpack4xU8'],
  },
  pack4xU8: {
    text: `fn pack4xU8(e: vec4u) -> u32 {
  let bytes = (e & vec4u(255)) << vec4u(0, 8, 16, 24);
  return bytes.x | bytes.y | bytes.z | bytes.w;
}`,
  },
  pack4xI8: { text: 'fn pack4xI8(e: vec4i) -> u32 { return pack4xU8(bitcast<vec4u>(e)); }', needs: ['pack4xU8'] },
};

/** Declares the functions that a text calls. */
export function packedFunctions(text: string): string {
  const called = new Set<string>();
  for (const [name, { needs = [] }] of Object.entries(FUNCTIONS))
    if (new RegExp(`\\b${name}\\(`).test(text)) for (const one of [name, ...needs]) called.add(one);
  return [...called].map(name => FUNCTIONS[name].text).join('\n');
}
