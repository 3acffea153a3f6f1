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

const TYPE_CODE: Record<Type, number> = { i32: 0x7f, f32: 0x7d, v128: 0x7b };

/** One WASM function: locals and statements. Its parameters are the first locals. */
export class Kernel {
  readonly params: Local<'i32' | 'f32'>[];
  private readonly types: Type[] = [];
  private body: number[] = [];

  constructor(
    readonly name: string,
    private readonly paramTypes: readonly ('i32' | 'f32')[],
  ) {
    this.params = paramTypes.map((type, index) => local(type, index));
  }

  i32Param(index: number): Local<'i32'> {
    return this.params[index] as Local<'i32'>;
  }

  f32Param(index: number): Local<'f32'> {
    return this.params[index] as Local<'f32'>;
  }

  private addLocal<T extends Type>(type: T): Local<T> {
    this.types.push(type);
    return local(type, this.paramTypes.length + this.types.length - 1);
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

  call(index: number, ...args: (I32 | F32)[]): void {
    this.do([...args.flatMap(arg => [...codeOf(arg)]), 0x10, ...unsignedLeb128(index)]);
  }

  signature(): number[] {
    return [0x60, ...unsignedLeb128(this.paramTypes.length), ...this.paramTypes.map(type => TYPE_CODE[type]), 0];
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
    kernels.map(kernel => kernel.signature()),
  );
  section(2, [[...text('env'), ...text('memory'), 2, memory.shared ? 3 : 1, 1, ...unsignedLeb128(memory.maxPages)]]);
  section(
    3,
    kernels.map((_, i) => unsignedLeb128(i)),
  );
  section(
    7,
    kernels.map((kernel, i) => [...text(kernel.name), 0, ...unsignedLeb128(i)]),
  );
  section(
    10,
    kernels.map(kernel => kernel.bytes()),
  );
  return Uint8Array.from(out);
}
