/** A formula in TeX; its source until it can be typeset, and if it is not valid. */
import { useSignal } from '@preact/signals';
import { useLayoutEffect, useRef } from 'preact/hooks';
import { createLate } from './late.ts';

const typesetter = createLate(() => import('./typeset.ts'));

/** Longer formulas stay as they are written: nobody reads them, and they would hold up the page. */
const MAX_LENGTH = 5000;

/** `source`: with its delimiters. */
export function Formula({ tex, source, isDisplay }: { tex: string; source: string; isDisplay: boolean }) {
  const target = useRef<HTMLSpanElement>(null);
  const isTypeset = useSignal(false);
  const library = tex.length <= MAX_LENGTH ? typesetter() : undefined;
  useLayoutEffect(() => {
    isTypeset.value = library?.typeset(tex, target.current!, isDisplay) ?? false;
  }, [library, tex, isDisplay, isTypeset]);
  return (
    // A wide formula scrolls, and a region that scrolls must be reachable by keyboard.
    <span class={isDisplay ? 'formula display' : 'formula'} tabIndex={isDisplay ? 0 : undefined}>
      {!isTypeset.value && source}
      <span ref={target} />
    </span>
  );
}
