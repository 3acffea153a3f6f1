/** Detects which WebAssembly features the engine supports, by means of tiny modules. */
import { platform } from '../../platform/node.ts';
import { i16x8, i32x4, type V128, v128 } from './emit.ts';
import { instantiate, Kernel, moduleBytes, PAGE_BYTES, signature } from './module.ts';

export interface WasmSupport {
  simd: boolean;
  relaxedSimd: boolean;
  /** The CPU has an instruction that adds int8 products to 32-bit sums, and the engine uses it for `relaxedDotAdd`. */
  dotAdd: boolean;
  /** The engine joins vectors of 128 bits to vectors of 256. */
  wide: boolean;
  sharedMemory: boolean;
}

export function wasmSupport(): WasmSupport {
  const valid = (value: V128) => WebAssembly.validate(moduleBytes([probe(value)], { maxPages: 1, shared: false }));
  const simd = () => valid(i16x8.add(v128.zero, v128.zero));
  const relaxed = () => valid(i16x8.relaxedDot(v128.zero, v128.zero));
  if (!relaxed()) platform.enableRelaxedSimd();
  const relaxedSimd = relaxed();
  return {
    simd: simd(),
    relaxedSimd,
    dotAdd: relaxedSimd && hasDotAdd(),
    wide: platform.enableWideSimd(),
    sharedMemory: platform.canShareMemory,
  };
}

/** A kernel that stores a value at address 0. */
function probe(value: V128): Kernel<never> {
  const k = new Kernel(signature<never>('probe'));
  k.do(v128.store(0, value));
  return k;
}

/**
 * What `relaxedDotAdd` gives for a second factor above 127, -1 or 255 here, depends on its implementation. One
 * instruction has exact sums (255 with VNNI of x86, -1 with SDOT of ARM); where it is composed of several, sums of two
 * products saturate in 16 bits. That is slower than adding in 16 bits, and in Node 20 its code is wrong until optimized.
 */
function hasDotAdd(): boolean {
  const dot = i32x4.relaxedDotAdd(v128.load(16), v128.load(32), v128.load(0));
  const { memory, calls } = instantiate({ probe: probe(dot) }, PAGE_BYTES);
  const sums = new Int32Array(memory.buffer, 0, 4).fill(1000);
  new Int8Array(memory.buffer).fill(127, 16, 32).fill(-1, 32, 48);
  calls.probe({});
  return [255, -1].some(factor => sums.every(sum => sum === 1000 + 4 * 127 * factor));
}
