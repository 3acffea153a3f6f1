/** Copies a text. Pages without https, such as those of a server in the same network, have no clipboard. */
import { useSignal } from '@preact/signals';
import { announcement } from '../state/notice.ts';
import { texts } from '../texts/index.ts';
import { CheckIcon, CopyIcon } from './icons.tsx';

/** How long a button shows that it has copied. */
const SHOWN_MS = 1500;

export function CopyButton({ text, name = texts.copy }: { text: string; name?: string }) {
  const isCopied = useSignal(false);
  if (!navigator.clipboard) return null;
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    announcement.value = texts.copied;
    isCopied.value = true;
    setTimeout(() => {
      isCopied.value = false;
    }, SHOWN_MS);
  };
  return (
    <button type="button" class="icon-button small" onClick={() => void copy()} aria-label={name}>
      {isCopied.value ? <CheckIcon /> : <CopyIcon />}
    </button>
  );
}
