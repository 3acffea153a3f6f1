/** An empty conversation: what one can do here, and with what. */
import { useSignal } from '@preact/signals';
import { send } from '../state/chat.ts';
import { connection } from '../state/connection.ts';
import { current } from '../state/conversations.ts';
import { addText, changeDraft } from '../state/drafts.ts';
import { loadSample } from '../state/sample.ts';
import { texts } from '../texts/index.ts';
import { Dialog } from './dialog.tsx';
import { LateModels } from './late-models.tsx';

export function Welcome() {
  const { engine } = connection.value;
  const name = engine?.info.name;
  return (
    <div class="welcome">
      <img src="./icon.svg" alt="" width="56" height="56" />
      <h2>{texts.welcome.title}</h2>
      <p>{texts.welcome.about(name)}</p>
      <div class="suggestions">
        <button type="button" disabled={!engine} onClick={() => void askOnSample()}>
          <strong>{texts.welcome.tryDocument}</strong>
          <span>{texts.welcome.aboutDocument}</span>
        </button>
        <button type="button" disabled={!engine} onClick={() => void ask(texts.welcome.story)}>
          <strong>{texts.welcome.tellStory}</strong>
          <span>{texts.welcome.aboutStory}</span>
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
      <p class="quiet">{texts.welcome.aboutMimir}</p>
      <button
        type="button"
        class="button slim"
        onClick={() => {
          isChoosing.value = true;
        }}
      >
        {texts.welcome.chooseModel}
      </button>
      <Dialog title={texts.welcome.models} kind="box" isOpen={isChoosing.value} onClose={close}>
        <LateModels isBusy={false} onLoad={close} />
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
