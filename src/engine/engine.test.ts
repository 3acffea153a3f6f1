import { expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { openModelFile } from './engine.ts';

it.each([
  ["{{ '<|e' + 'nd|>' }}", /from pieces/],
  ["{{ '<|end|>' }}", undefined],
  [undefined, /ChatML/],
])('reports a missing or unusual chat template as a note: %s', async (source, note) => {
  const file = await openModelFile(
    writeGguf(tinyModel({ layers: 1, metadata: { 'tokenizer.chat_template': source } })),
  );
  if (note) expect(file.template.note).toMatch(note);
  else expect(file.template.note).toBeUndefined();
});
