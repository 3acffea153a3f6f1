/** What this machine's WebAssembly can do, found by asking it to validate the smallest module that needs it. */
export interface WasmFeatures {
  simd: boolean;
  relaxedSimd: boolean;
  /** Shared memory, which threads need. */
  threads: boolean;
}

/** As little of WebAssembly as is asked here: it is no part of the language, so a host may lack it. */
interface Wasm {
  validate(module: Uint8Array): boolean;
  Memory: new (options: { initial: number; maximum: number; shared: boolean }) => { buffer: unknown };
}
const wasm = (globalThis as { WebAssembly?: Wasm }).WebAssembly;

/** A splat of zero: i32.const 0, i8x16.splat. */
const SPLAT = [0x41, 0, 0xfd, 0x0f];

export function wasmFeatures(): WasmFeatures {
  return {
    simd: validates(SPLAT),
    // i8x16.relaxed_swizzle is operation 0x100.
    relaxedSimd: validates([...SPLAT, ...SPLAT, 0xfd, 0x80, 0x02]),
    threads: hasSharedMemory(),
  };
}

/** A module with one function () -> v128 of this code. */
function validates(code: number[]): boolean {
  const body = [0, ...code, 0x0b];
  const section = (id: number, ...content: number[]) => [id, content.length, ...content];
  const module = [
    ...[0, 0x61, 0x73, 0x6d, 1, 0, 0, 0],
    ...section(1, 1, 0x60, 0, 1, 0x7b),
    ...section(3, 1, 0),
    ...section(10, 1, body.length, ...body),
  ];
  return wasm?.validate(Uint8Array.from(module)) ?? false;
}

function hasSharedMemory(): boolean {
  try {
    return !!wasm && new wasm.Memory({ initial: 1, maximum: 1, shared: true }).buffer instanceof SharedArrayBuffer;
  } catch {
    return false;
  }
}
