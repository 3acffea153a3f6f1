/** A part of the page that is loaded when it is first shown. */
import type { ComponentChildren } from 'preact';
import { texts } from '../texts/index.ts';
import type { Late } from './late.ts';

interface PartProps<T> {
  part: Late<T>;
  children: (module: T) => ComponentChildren;
}

export function LatePart<T>({ part, children }: PartProps<T>) {
  const module = part();
  if (module) return children(module);
  if (!part.hasFailed.value) return null;
  return (
    <div class="notice-box" role="alert">
      <p>{texts.app.updated}</p>
      <div class="row">
        <button type="button" class="button primary" onClick={() => location.reload()}>
          {texts.app.reload}
        </button>
        <button type="button" class="button" onClick={part.retry}>
          {texts.failure.tryAgain}
        </button>
      </div>
    </div>
  );
}
