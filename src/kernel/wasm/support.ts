/** Detects which WebAssembly features the engine supports by validating tiny modules. */
import { platform } from '../../platform/node.ts';
import { i16x8, i32, v128 } from './emit.ts';
import { Kernel, moduleBytes } from './module.ts';

export interface WasmSupport {
  simd: boolean;
  relaxedSimd: boolean;
  sharedMemory: boolean;
}

export function wasmSupport(): WasmSupport {
  const valid = (relaxed: boolean) => {
    const k = new Kernel('probe', ['i32']);
    const x = v128.load(k.i32Param(0));
    k.do(v128.store(i32.add(k.i32Param(0), 16), relaxed ? i16x8.relaxedDot(x, x) : i16x8.add(x, x)));
    return WebAssembly.validate(moduleBytes([k], { maxPages: 1, shared: false }));
  };
  if (!valid(true)) platform.enableRelaxedSimd();
  return { simd: valid(false), relaxedSimd: valid(true), sharedMemory: platform.canShareMemory };
}
