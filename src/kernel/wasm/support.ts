/** Detects which WebAssembly features the engine supports by validating tiny modules. */
import { i16x8, i32, v128 } from './emit.ts';
import { Kernel, moduleBytes } from './module.ts';

export interface WasmSupport {
  simd: boolean;
  relaxedSimd: boolean;
  sharedMemory: boolean;
}

/**
 * Node 20 has relaxed SIMD behind a flag, which applies to modules compiled after it is set. Later versions need no
 * flag and warn about it.
 */
async function allowRelaxedSimd(): Promise<void> {
  if (typeof process === 'undefined' || !process.versions?.node) return;
  const v8 = await import('node:v8');
  v8.setFlagsFromString('--experimental-wasm-relaxed-simd');
}

export async function wasmSupport(): Promise<WasmSupport> {
  const valid = (relaxed: boolean) => {
    const k = new Kernel('probe', ['i32']);
    const x = v128.load(k.i32Param(0));
    k.do(v128.store(i32.add(k.i32Param(0), 16), relaxed ? i16x8.relaxedDot(x, x) : i16x8.add(x, x)));
    return WebAssembly.validate(moduleBytes([k], { maxPages: 1, shared: false }));
  };
  if (!valid(true)) await allowRelaxedSimd();
  return { simd: valid(false), relaxedSimd: valid(true), sharedMemory: typeof SharedArrayBuffer !== 'undefined' };
}
