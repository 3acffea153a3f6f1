/** `runWorker`: the program of a Worker that the page starts itself. */

/** Serves the model that `startWorker(model, { worker })` names. Call it first, since the page does not wait to ask. */
export async function runWorker(): Promise<void> {
  const early: MessageEvent[] = [];
  const keep = (event: MessageEvent) => early.push(event);
  addEventListener('message', keep);
  await import('./engine-worker.ts');
  removeEventListener('message', keep);
  for (const { data } of early) dispatchEvent(new MessageEvent('message', { data }));
}
