/** Kernels and modules: locals, loops and statements built from the instructions of emit.ts. */
import {
  type Code,
  codeOf,
  type Expr,
  type F32,
  type I32,
  i32,
  type Local,
  type Type,
  unsignedLeb128,
  type V128,
} from './emit.ts';

/** Bytes of a page of WebAssembly memory. */
export const PAGE_BYTES = 65536;

const TYPE_CODE: Record<Type, number> = { i32: 0x7f, f32: 0x7d, v128: 0x7b };

/** A kernel as its callers see it: its name, and the names of its parameters in order. */
export interface Signature<P extends string = string> {
  readonly name: string;
  readonly params: readonly P[];
}

export const signature = <P extends string>(name: string, ...params: P[]): Signature<P> => ({ name, params });

/** A kernel that others of its module call: its position among the module's kernels. */
export interface Callee<P extends string> extends Signature<P> {
  readonly index: number;
}

/** Arguments by name, in the order of the parameters. */
export const orderArgs = <P extends string>({ params }: Signature<P>, args: Record<P, number>): number[] =>
  params.map(name => args[name]);

/** One WASM function: locals and statements. Its parameters are the first locals, all i32: floats are passed as bits. */
export class Kernel<P extends string = string> {
  readonly params: Readonly<Record<P, Local<'i32'>>>;
  private readonly types: Type[] = [];
  private body: number[] = [];

  constructor(readonly signature: Signature<P>) {
    const locals = signature.params.map((name, index) => [name, local('i32', index)]);
    this.params = Object.fromEntries(locals);
  }

  private addLocal<T extends Type>(type: T): Local<T> {
    this.types.push(type);
    return local(type, this.signature.params.length + this.types.length - 1);
  }

  i32(value?: I32): Local<'i32'> {
    const l = this.addLocal('i32');
    if (value !== undefined) this.set(l, value);
    return l;
  }

  f32(value?: F32): Local<'f32'> {
    const l = this.addLocal('f32');
    if (value) this.set(l, value);
    return l;
  }

  v128(value?: V128): Local<'v128'> {
    const l = this.addLocal('v128');
    if (value) this.set(l, value);
    return l;
  }

  set<T extends Type>(target: Local<T>, value: Expr<T> | (T extends 'i32' ? I32 : never)): void {
    this.do([...codeOf(value as I32), 0x21, ...unsignedLeb128(target.index)]);
  }

  increment(target: Local<'i32'>, by: I32): void {
    this.set(target, i32.add(target, by));
  }

  do(...statements: Code[]): void {
    for (const statement of statements) for (const byte of statement) this.body.push(byte);
  }

  if(condition: I32, yes: () => void, no?: () => void): void {
    this.do([...codeOf(condition), 0x04, 0x40]);
    yes();
    if (no) {
      this.do([0x05]);
      no();
    }
    this.do([0x0b]);
  }

  /** while (!done) { body; counter += step } */
  private loopUntil(done: Expr<'i32'>, counter: Local<'i32'>, step: I32, body: () => void): void {
    this.do([0x02, 0x40, 0x03, 0x40]);
    this.do([...done.code, 0x0d, 1]);
    body();
    this.increment(counter, step);
    this.do([0x0c, 0, 0x0b, 0x0b]);
  }

  while(condition: I32, body: () => void): void {
    this.do([0x02, 0x40, 0x03, 0x40]);
    this.do([...i32.eqz(condition).code, 0x0d, 1]);
    body();
    this.do([0x0c, 0, 0x0b, 0x0b]);
  }

  /** for (i = from; i < end; i += step), compared as signed: for counts and offsets. */
  for(from: I32, end: I32, step: I32, body: (i: Local<'i32'>) => void): void {
    const i = this.i32(from);
    this.loopUntil(i32.geS(i, end), i, step, () => body(i));
  }

  /** The same, compared as unsigned: for addresses, which exceed 2^31 in large memories. */
  forAddresses(from: I32, end: I32, step: I32, body: (address: Local<'i32'>) => void): void {
    const address = this.i32(from);
    this.loopUntil(i32.geU(address, end), address, step, () => body(address));
  }

  call<Q extends string>({ index, params }: Callee<Q>, args: Record<Q, I32>): void {
    this.do([...params.flatMap(name => codeOf(args[name])), 0x10, ...unsignedLeb128(index)]);
  }

  typeBytes(): number[] {
    const { params } = this.signature;
    return [0x60, ...unsignedLeb128(params.length), ...params.map(() => TYPE_CODE.i32), 0];
  }

  bytes(): number[] {
    const locals = this.types.flatMap(type => [1, TYPE_CODE[type]]);
    return sized(unsignedLeb128(this.types.length).concat(locals, this.body, 0x0b));
  }
}

function local<T extends Type>(type: T, index: number): Local<T> {
  return { type, index, code: [0x20, ...unsignedLeb128(index)] };
}

const sized = (bytes: number[]): number[] => unsignedLeb128(bytes.length).concat(bytes);
const text = (s: string) => sized([...new TextEncoder().encode(s)]);

/** A module that exports the kernels and imports one memory, `env.memory`. */
export function moduleBytes(
  kernels: readonly Kernel[],
  memory: { maxPages: number; shared: boolean },
): Uint8Array<ArrayBuffer> {
  let out = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0];
  const section = (id: number, items: readonly number[][]) => {
    out = out.concat(id, sized(unsignedLeb128(items.length).concat(...items)));
  };
  section(
    1,
    kernels.map(kernel => kernel.typeBytes()),
  );
  section(2, [[...text('env'), ...text('memory'), 2, memory.shared ? 3 : 1, 1, ...unsignedLeb128(memory.maxPages)]]);
  section(
    3,
    kernels.map((_, i) => unsignedLeb128(i)),
  );
  section(
    7,
    kernels.map((kernel, i) => [...text(kernel.signature.name), 0, ...unsignedLeb128(i)]),
  );
  section(
    10,
    kernels.map(kernel => kernel.bytes()),
  );
  return Uint8Array.from(out);
}

type Calls<K> = { [N in keyof K]: K[N] extends Kernel<infer P> ? (args: Record<P, number>) => void : never };

/** Kernels with a memory of their own, for work outside of a device. Arguments are given by name. */
export function instantiate<K extends Record<string, Kernel>>(
  kernels: K,
  bytes: number,
  maxBytes = bytes,
): { memory: WebAssembly.Memory; calls: Calls<K> } {
  const [pages, maxPages] = [bytes, maxBytes].map(size => Math.ceil(size / PAGE_BYTES));
  const memory = new WebAssembly.Memory({ initial: pages, maximum: maxPages });
  const module = new WebAssembly.Module(moduleBytes(Object.values(kernels), { maxPages, shared: false }));
  const { exports } = new WebAssembly.Instance(module, { env: { memory } });
  const calls = Object.entries(kernels).map(([key, { signature }]) => {
    const run = exports[signature.name] as (...args: number[]) => void;
    return [key, (args: Record<string, number>) => run(...orderArgs(signature, args))];
  });
  return { memory, calls: Object.fromEntries(calls) };
}
