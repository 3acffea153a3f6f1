/** What went wrong, above the field to write in: also while caches are compared. */

import { connection } from '../state/connection.ts';
import { saveUnsaved } from '../state/conversations.ts';
import { closeNotice, notice, noticeAction } from '../state/notice.ts';
import { unsaved } from '../state/unsaved.ts';
import { texts } from '../texts/index.ts';
import { Failure } from './failure.tsx';
import { CloseIcon } from './icons.tsx';

export function Alerts() {
  const { phase } = connection.value;
  return (
    <>
      {(phase === 'failed' || phase === 'lost') && <Failure />}
      <Unsaved />
      <Notice />
    </>
  );
}

function Notice() {
  if (!notice.value) return null;
  const action = noticeAction.value;
  return (
    <div class="notice-row" role="alert">
      <p>{notice.value}</p>
      {action && (
        <button type="button" class="button slim" onClick={action.run}>
          {action.label}
        </button>
      )}
      <button type="button" class="icon-button small" onClick={closeNotice} aria-label={texts.close}>
        <CloseIcon />
      </button>
    </div>
  );
}

/** As long as it lasts. */
function Unsaved() {
  if (unsaved.value.size === 0) return null;
  return (
    <div class="notice-row" role="status">
      <p>{texts.conversations.onlyHere}</p>
      <button type="button" class="button slim" onClick={() => void saveUnsaved()}>
        {texts.conversations.saveAgain}
      </button>
    </div>
  );
}
