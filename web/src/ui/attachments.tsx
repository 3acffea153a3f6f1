/** Documents that are added to a message. */
import { signal } from '@preact/signals';
import { readDocument } from '../documents/read-document.ts';
import { formatBytes } from '../format.ts';
import { type Attachment, newId } from '../state/conversation.ts';
import { current } from '../state/conversations.ts';
import { addText } from '../state/drafts.ts';
import { texts } from '../texts/index.ts';
import { CloseIcon, DocumentIcon } from './icons.tsx';

export const attachmentError = signal('');

/** Documents that are being read. */
export const reading = signal<readonly { id: string; name: string; fraction: number }[]>([]);

/** Adds files one after the other, in their order. One that cannot be read does not keep the others out. */
export async function addFiles(files: Iterable<File>): Promise<void> {
  attachmentError.value = '';
  // Reading takes a while, in which the user may open another conversation.
  const conversation = current.value.id;
  const waiting = [...files].map(file => ({ id: newId(), file }));
  reading.value = [...reading.value, ...waiting.map(({ id, file: { name } }) => ({ id, name, fraction: 0 }))];
  const problems: string[] = [];
  for (const { id, file } of waiting) {
    const onProgress = (fraction: number) => {
      reading.value = reading.value.map(item => (item.id === id ? { ...item, fraction } : item));
    };
    try {
      const text = await readDocument(file, onProgress);
      // Tokens are counted later: the next document need not wait for it.
      void addText(file.name, text, conversation);
    } catch (error) {
      problems.push((error as Error).message);
      attachmentError.value = problems.join(' ');
    } finally {
      reading.value = reading.value.filter(item => item.id !== id);
    }
  }
}

/** Documents that are being read, and how far. */
export const ReadingCards = () =>
  reading.value.map(({ id, name, fraction }) => (
    <div key={id} class="attachment reading-card">
      <DocumentIcon />
      <span class="attachment-name">{name}</span>
      <progress value={fraction} max={1} aria-label={texts.documents.reading(name)} />
    </div>
  ));

/** A document, which can be read in place. */
export function AttachmentCard({ attachment, onRemove }: { attachment: Attachment; onRemove?: () => void }) {
  const { name, text, tokens } = attachment;
  return (
    <div class="attachment">
      <details>
        <summary>
          <DocumentIcon />
          <span class="attachment-name">{name}</span>
          <span class="quiet">{tokens === undefined ? formatBytes(text.length) : texts.tokens(tokens)}</span>
        </summary>
        {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard */}
        <pre tabIndex={0}>{text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text}</pre>
      </details>
      {onRemove && (
        <button type="button" class="icon-button small" onClick={onRemove} aria-label={texts.documents.remove(name)}>
          <CloseIcon />
        </button>
      )}
    </div>
  );
}

/** Characters of a document that are shown. */
const PREVIEW = 20_000;
