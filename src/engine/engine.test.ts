import { expect, it } from 'vitest';
import { writeGguf } from '../../test/gguf-writer.ts';
import { tinyModel } from '../../test/tiny-model.ts';
import { openModelFile } from './engine.ts';

it.each([
  ["{{ '<|e' + 'nd|>' }}", /from pieces/],
  ["{{ '<|end|>' }}", undefined],
  [undefined, /ChatML/],
])('a model file says what one should know of its chat template: %s', async (source, note) => {
  const file = await openModelFile(
    writeGguf(tinyModel({ layers: 1, metadata: { 'tokenizer.chat_template': source } })),
  );
  if (note) expect(file.template.note).toMatch(note);
  else expect(file.template.note).toBeUndefined();
});
