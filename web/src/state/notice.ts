/** What the page tells beside the conversation. */
import { signal } from '@preact/signals';
import { texts } from '../texts/index.ts';

/** For screen readers: what has just happened. */
export const announcement = signal('');

/** What went wrong beside the answer, such as a cache that could not be saved. The conversation goes on. */
export const notice = signal('');
/** What can be done about it, while the notice is shown. */
export const noticeAction = signal<{ label: string; run(): void } | undefined>(undefined);
let last = '';

/** A notice that was closed is not shown again until there is another one. */
export function showNotice(text: string): void {
  if (text !== last) {
    notice.value = text;
    noticeAction.value = undefined;
  }
  last = text;
}

export const closeNotice = (): void => {
  notice.value = '';
  noticeAction.value = undefined;
};

/** Long enough to read it, and to reach its button. */
const OFFERED_MS = 10_000;

/** Offers to take back what has just been done, for some seconds. */
export function offer(text: string, label: string, run: () => void): void {
  refuse(text);
  const action = {
    label,
    run() {
      closeNotice();
      run();
    },
  };
  noticeAction.value = action;
  setTimeout(() => noticeAction.value === action && closeNotice(), OFFERED_MS);
}

/** What the user has just tried and cannot: shown each time. */
export function refuse(text: string): void {
  last = '';
  showNotice(text);
}

export const describeStorageError = ({ name, message }: Error): string =>
  name === 'QuotaExceededError' ? texts.conversations.storageFull : message;
