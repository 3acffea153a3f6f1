/**
 * What differs between Node and browsers, in one place. `node.ts` and `browser.ts` implement it; the `browser` field of
 * package.json makes bundlers take the latter.
 */
export interface Platform {
  coreCount(): number;
  /** Bytes that a model may take, by default. */
  memoryLimit(): number;
  /** Whether memory can be shared with other threads. */
  readonly canShareMemory: boolean;
  /** Whether this thread may sleep in `Atomics.wait`. A page's main thread may not. */
  readonly canBlock: boolean;
  /** Lets timers, input and messages run. */
  yieldToEventLoop(): Promise<void>;
  /** Enables relaxed SIMD for WebAssembly modules that are compiled later, where that takes a flag. */
  enableRelaxedSimd(): void;
  /** Has the engine join vectors of 128 bits to vectors of 256 in WebAssembly modules that are compiled later, if it can. */
  enableWideSimd(): boolean;
  /**
   * Starts a thread. Its program is plain JavaScript, so that it runs without a bundler or a TypeScript loader, with
   * `onMessage(listener)` and `post(message)`; it answers each message with one. `onEnd` is called when the thread ends
   * before `terminate`.
   */
  startThread(program: string, onEnd: (why: string) => void): Thread;
  /** WebGPU, or why there is none. */
  openGpu(): Promise<GPU | string>;
  /** What a URL in a string is relative to, in a browser. Undefined in Node, where other strings are paths. */
  readonly baseUrl?: string;
  /** The bytes of a file. In a browser, paths are those of the site's own files (OPFS). */
  readFile(path: string): AsyncIterable<Uint8Array>;
  /** Writes a file completely or not at all. */
  writeFile(path: string, chunks: AsyncIterable<Uint8Array>): Promise<void>;
  /** Node's modules, for files on disk. Throws an UnsupportedError in a browser. */
  readonly node: NodeModules;
}

/** A thread that runs a program. It does not keep the process alive. */
export interface Thread {
  /** Resolves when the program has answered, with the answer. Rejects if the thread ends before. */
  ask(message: unknown): Promise<unknown>;
  terminate(): Promise<void>;
}

export interface NodeModules {
  readonly crypto: typeof import('node:crypto');
  readonly fs: typeof import('node:fs');
  readonly os: typeof import('node:os');
  readonly path: typeof import('node:path');
  readonly url: typeof import('node:url');
}
