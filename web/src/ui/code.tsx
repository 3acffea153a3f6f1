/** A block of code, with colors once it is complete and its language is known. */
import { useMemo } from 'preact/hooks';
import { texts } from '../texts/index.ts';
import { CopyButton } from './copy-button.tsx';
import { languageOf } from './languages.ts';
import { createLate } from './late.ts';

const highlighter = createLate(() => import('./highlight.ts'));

/** Longer code stays plain: to color it would hold up the page. */
const MAX_HIGHLIGHTED = 50_000;

interface CodeProps {
  /** What follows the fence. */
  info: string;
  code: string;
  /** Whether its end has come; until then it grows. */
  isComplete: boolean;
}

export function Code({ info, code, isComplete }: CodeProps) {
  const language = isComplete && code.length <= MAX_HIGHLIGHTED ? languageOf(info) : undefined;
  const library = language && highlighter();
  const colored = useMemo(() => library && language && library.highlight(code, language), [library, language, code]);
  return (
    <div class="code">
      <div class="code-head">
        <span class="quiet">{info || texts.messages.code}</span>
        <CopyButton text={code} name={texts.messages.copyCode} />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
      <pre tabIndex={0}>
        <code>{colored || code}</code>
      </pre>
    </div>
  );
}
