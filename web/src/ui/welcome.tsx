/** An empty conversation: what one can do here, and with what. */
import { useSignal } from '@preact/signals';
import { send } from '../state/chat.ts';
import { connection } from '../state/connection.ts';
import { current } from '../state/conversations.ts';
import { addText, changeDraft } from '../state/drafts.ts';
import { loadSample } from '../state/sample.ts';
import { Dialog } from './dialog.tsx';
import { ModelList } from './model-list.tsx';

export function Welcome() {
  const { engine } = connection.value;
  const name = engine?.info.name;
  return (
    <div class="welcome">
      <img src="./icon.svg" alt="" width="56" height="56" />
      <h2>What would you like to read?</h2>
      <p>
        Drop a long document and ask about it. {name ? `${name} keeps` : 'The model keeps'} what it has read in a packed
        cache, so the next question is answered at once.
      </p>
      <div class="suggestions">
        <button type="button" disabled={!engine} onClick={() => void askOnSample()}>
          <strong>Try a document</strong>
          <span>Ten pages of stories, and a question on a fact in them</span>
        </button>
        <button type="button" disabled={!engine} onClick={() => void ask('Tell me a story about a lost teapot.')}>
          <strong>Tell a story</strong>
          <span>About a lost teapot</span>
        </button>
      </div>
      {name === 'Mimir' && <AboutMimir />}
    </div>
  );
}

/** It is small: whoever expects more should know where more is. */
function AboutMimir() {
  const isChoosing = useSignal(false);
  const close = () => {
    isChoosing.value = false;
  };
  return (
    <>
      <p class="quiet">
        Mimir is very small: it finds facts in stories such as those of the sample, and tells little stories. It knows
        nothing of the world.
      </p>
      <button
        type="button"
        class="button slim"
        onClick={() => {
          isChoosing.value = true;
        }}
      >
        Choose a larger model
      </button>
      <Dialog title="Models for this browser" kind="box" isOpen={isChoosing.value} onClose={close}>
        <ModelList isBusy={false} onLoad={close} />
      </Dialog>
    </>
  );
}

async function askOnSample(): Promise<void> {
  const { id } = current.value;
  const { name, questions, text } = await loadSample();
  await addText(name, text, id);
  // The user may have opened another conversation meanwhile.
  if (current.value.id === id) await ask(questions[0]!);
}

function ask(text: string): Promise<void> {
  changeDraft({ text });
  document.getElementById('composer')?.focus();
  return send();
}
