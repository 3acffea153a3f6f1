/** Documents that are added to a message. */
import { signal } from '@preact/signals';
import { formatBytes, formatCount } from '../format.ts';
import type { Attachment } from '../state/conversation.ts';
import { addText } from '../state/drafts.ts';
import { CloseIcon, DocumentIcon } from './icons.tsx';

export const attachmentError = signal('');

const MAX_BYTES = 20_000_000;

export async function addFiles(files: Iterable<File>): Promise<void> {
  attachmentError.value = '';
  for (const file of files) {
    // A file that was changed or deleted after it had been chosen cannot be read.
    const text = file.size <= MAX_BYTES ? await file.text().catch(() => undefined) : '';
    if (text === undefined) attachmentError.value = `${file.name} cannot be read. Choose it again.`;
    else if (/\.gguf$/i.test(file.name))
      attachmentError.value = `${file.name} is a model. Open it under “Runs on”, in this browser.`;
    else if (file.size > MAX_BYTES)
      attachmentError.value = `${file.name} is too large (${formatBytes(file.size)}); at most ${formatBytes(MAX_BYTES)}.`;
    else if (text.includes('\0')) attachmentError.value = `${file.name} is not a text file.`;
    else if (text.trim() === '') attachmentError.value = `${file.name} is empty.`;
    else await addText(file.name, text);
  }
}

/** A document, which can be read in place. */
export function AttachmentCard({ attachment, onRemove }: { attachment: Attachment; onRemove?: () => void }) {
  const { name, text, tokens } = attachment;
  return (
    <div class="attachment">
      <details>
        <summary>
          <DocumentIcon />
          <span class="attachment-name">{name}</span>
          <span class="quiet">{tokens === undefined ? formatBytes(text.length) : `${formatCount(tokens)} tokens`}</span>
        </summary>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
        <pre tabIndex={0}>{text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text}</pre>
      </details>
      {onRemove && (
        <button type="button" class="icon-button small" onClick={onRemove} aria-label={`Remove ${name}`}>
          <CloseIcon />
        </button>
      )}
    </div>
  );
}

/** Characters of a document that are shown. */
const PREVIEW = 20_000;
