/** The member that `await using` calls, in a form that compiles whether or not a user's `lib` knows of it. */

/** Typed only by `lib: ["esnext.disposable"]` and by @types/node; `never` for a user who has neither. */
type AsyncDispose = SymbolConstructor extends { readonly asyncDispose: infer Key extends symbol } ? Key : never;

/**
 * `[Symbol.asyncDispose](): Promise<void>`, for an interface to extend. Name the interface's other base, if it has one:
 * `AsyncGenerator` has the member already under some libs, and an interface cannot inherit it twice.
 */
export type AsyncDisposableLike<Base = unknown> = { [key in Exclude<AsyncDispose, keyof Base>]: () => Promise<void> };
