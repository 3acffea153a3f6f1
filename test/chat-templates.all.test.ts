/** Chat templates that llama.cpp's repository contains are rendered as transformers does. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { beforeAll, describe } from 'vitest';
import { testTemplatesOf } from './support/chat-templates.ts';
import { checkOutOfLlamaCpp } from './support/llama-cpp-repository.ts';

describe("llama.cpp's models/templates", () => {
  let folder: string;
  beforeAll(() => {
    folder = checkOutOfLlamaCpp('models/templates');
  });
  testTemplatesOf('llama.cpp', name => readFileSync(join(folder, `${name}.jinja`), 'utf8'));
});
