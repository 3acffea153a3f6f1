/** An empty conversation: what one can do here. */
import { connection } from '../state/connection.ts';
import { addText, changeDraft } from '../state/drafts.ts';
import { loadSample } from '../state/sample.ts';

export function Welcome() {
  const { engine } = connection.value;
  const ask = (text: string) => {
    changeDraft({ text });
    document.getElementById('composer')?.focus();
  };
  const readSample = async () => {
    const { name, questions, text } = await loadSample();
    ask(questions[0]!);
    await addText(name, text);
  };
  return (
    <div class="welcome">
      <img src="./icon.svg" alt="" width="56" height="56" />
      <h2>What would you like to read?</h2>
      <p>
        Drop a long document and ask about it. {engine ? `${engine.info.name} keeps` : 'The model keeps'} what it has
        read in a packed cache, so the next question is answered at once.
      </p>
      <div class="suggestions">
        <button type="button" onClick={() => void readSample()}>
          <strong>Try a document</strong>
          <span>Ten pages of stories, and a question on a fact in them</span>
        </button>
        <button type="button" onClick={() => ask('Tell me a story about a lost teapot.')}>
          <strong>Tell a story</strong>
          <span>About a lost teapot</span>
        </button>
      </div>
    </div>
  );
}
