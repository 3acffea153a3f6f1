/** Chat templates of models are rendered as transformers does: `test/fixtures/make-chat-templates.py`. */
import { readFileSync } from 'node:fs';
import { transform } from 'esbuild';
import { describe } from 'vitest';
import { testTemplatesOf } from './support/chat-templates.ts';

// The package has the table only in its source.
const table = new URL('../node_modules/@huggingface/ollama-utils/src/chat-template-automap.ts', import.meta.url);
const { code } = await transform(readFileSync(table, 'utf8'), { loader: 'ts', format: 'esm' });
const { OLLAMA_CHAT_TEMPLATE_MAPPING: entries } = (await import(
  /* @vite-ignore */ `data:text/javascript;base64,${Buffer.from(code).toString('base64')}`
)) as { OLLAMA_CHAT_TEMPLATE_MAPPING: { model: string; gguf: string }[] };
const sources = new Map(entries.map(({ model, gguf }) => [model, gguf]));

describe("templates of @huggingface/ollama-utils' table", () => {
  testTemplatesOf('ollama-utils', name => sources.get(name)!);
});

describe('templates of our own', () => {
  testTemplatesOf('fixtures', name => readFileSync(new URL(`fixtures/${name}`, import.meta.url), 'utf8'));
});
