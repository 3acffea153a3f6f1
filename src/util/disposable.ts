/** The member that `await using` calls, typed so that it compiles whether or not the user's `lib` declares it. */

/** Declared only by `lib: ["esnext.disposable"]` and @types/node; `never` without them. */
export type AsyncDispose = SymbolConstructor extends { readonly asyncDispose: infer Key extends symbol } ? Key : never;

/**
 * `[Symbol.asyncDispose](): Promise<void>`, for an interface to extend. Pass the interface's other base, if any:
 * `AsyncGenerator` declares the member already under some libs, and an interface cannot inherit it twice.
 */
export type AsyncDisposableLike<Base = unknown> = { [key in Exclude<AsyncDispose, keyof Base>]: () => Promise<void> };
