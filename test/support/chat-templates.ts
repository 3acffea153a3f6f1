/** What transformers renders of conversations: `test/fixtures/chat-templates.json`, and the comparison with it. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect, it } from 'vitest';
import { type ChatMessage, createChatTemplate } from '../../src/model/template.ts';
import { InputError } from '../../src/util/errors.ts';

interface Case {
  messages: ChatMessage[];
  tools: unknown;
  variables: Record<string, unknown>;
  addGenerationPrompt: boolean;
}

/** The text, that of another case, or the template's refusal. */
type Rendered = string | { as: string } | { error: string };

interface Fixture {
  now: string;
  cases: Record<string, Case>;
  templates: {
    package: string;
    name: string;
    sha256: string;
    bos: string;
    eos: string;
    rendered: Record<string, Rendered>;
  }[];
}

const read = (): Fixture =>
  JSON.parse(readFileSync(new URL('../fixtures/chat-templates.json', import.meta.url), 'utf8'));

/** A test per template of a package; `readSource` reads the template of a name. */
export function testTemplatesOf(from: string, readSource: (name: string) => string): void {
  const { now, cases, templates } = read();
  const own = templates.filter(template => template.package === from);
  it.each(own)('$name', ({ name, sha256, bos, eos, rendered }) => {
    const source = readSource(name);
    expect(createHash('sha256').update(source).digest('hex')).toBe(sha256);
    const template = createChatTemplate({ source, bosToken: bos, eosToken: eos });
    const textOf = (of: string): Rendered => {
      const { messages, tools, variables, addGenerationPrompt } = cases[of];
      const all = tools ? { ...variables, tools } : variables;
      try {
        return template.render(messages, { addGenerationPrompt, variables: all, now: new Date(now) });
      } catch (error) {
        if (!(error instanceof InputError)) throw error;
        return { error: error.message.replace('The chat template rejects these messages: ', '') };
      }
    };
    const texts = Object.fromEntries(Object.keys(rendered).map(of => [of, textOf(of)]));
    const expected = Object.entries(rendered).map(([of, text]) =>
      typeof text === 'object' && 'as' in text ? [of, rendered[text.as]] : [of, text],
    );
    expect(texts).toEqual(Object.fromEntries(expected));
  });
}
