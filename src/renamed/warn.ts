/** Entry points of 0.1, which still work in this release. */

/** In Node once per process; nothing in browsers. */
export function warnRenamed(name: string, now: string): void {
  globalThis.process?.emitWarning?.(`Import from '${now}': '${name}' goes in the next release.`, 'DeprecationWarning');
}
