/** What the page tells beside the conversation. */
import { signal } from '@preact/signals';
import { texts } from '../texts/index.ts';

/** For screen readers: what has just happened. */
export const announcement = signal('');

/** What went wrong beside the answer, such as a cache that could not be saved. The conversation goes on. */
export const notice = signal('');
let last = '';

/** A notice that was closed is not shown again until there is another one. */
export function showNotice(text: string): void {
  if (text !== last) notice.value = text;
  last = text;
}

export const closeNotice = (): void => {
  notice.value = '';
};

/** What the user has just tried and cannot: shown each time. */
export function refuse(text: string): void {
  last = '';
  showNotice(text);
}

export const describeStorageError = ({ name, message }: Error): string =>
  name === 'QuotaExceededError' ? texts.conversations.storageFull : message;
