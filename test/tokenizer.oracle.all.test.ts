/**
 * Compares token ids with llama.cpp's, with a real vocabulary, on WikiText-2's validation text and on edge cases. The
 * golden checksums test the same where llama.cpp is not installed.
 */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { beforeAll, describe, expect, it } from 'vitest';
import { encodeChat } from '../src/model/chat.ts';
import { createChatTemplate } from '../src/model/template.ts';
import { type ChatTokenizer, createTokenizer } from '../src/model/tokenizer.ts';
import { cpuTime } from './support/cpu-time.ts';
import { edgeCaseStrings } from './support/edge-case-strings.ts';
import { findLlamaTokenizers, firstDifference } from './support/llama-tokenizer.ts';
import { missing, modelPath, readMetadata, wikitextPath } from './support/model.ts';

const reason = missing(modelPath, wikitextPath);
const nasty = edgeCaseStrings();

const oracle = reason ? undefined : await (await findLlamaTokenizers())?.(modelPath);

describe.skipIf(reason)(`SmolLM2's vocabulary${reason ? ` (${reason})` : ''}`, () => {
  let metadata: Map<string, unknown>;
  let tokenizer: ChatTokenizer;
  let wikitext: string;

  beforeAll(() => {
    metadata = readMetadata(modelPath);
    tokenizer = createTokenizer(metadata);
    wikitext = readFileSync(wikitextPath, 'utf8');
  });

  it('matches the golden ids', () => {
    const golden = JSON.parse(readFileSync(new URL('./fixtures/tokenizer-golden.json', import.meta.url), 'utf8'));
    const encodeAll = (special: boolean) =>
      nasty.flatMap(({ text }) => tokenizer.encode(text, { parseSpecialTokens: special }));
    expect({
      wikitext: checksum(tokenizer.encode(wikitext)),
      nasty: checksum(encodeAll(false)),
      nastySpecial: checksum(encodeAll(true)),
    }).toEqual(golden.sums);
  });

  it('encodes a megabyte in a few seconds', () => {
    const started = cpuTime();
    tokenizer.encode(wikitext);
    expect(cpuTime() - started).toBeLessThan(5000);
  });

  it.each(['a', ' ', '\n', '1', '!', '中', '\u0301', "'s", ' a', '👨‍👩‍👧'])(
    'encodes 100 KB of %j in bounded time',
    text => {
      const started = cpuTime();
      tokenizer.encode(text.repeat(100_000 / text.length));
      tokenizer.encode(`${text.repeat(100_000 / text.length)}x`);
      expect(cpuTime() - started).toBeLessThan(5000);
    },
  );

  it('decodes what it encoded', () => {
    for (const { name, text } of [...nasty, { name: 'wikitext', text: wikitext }]) {
      if (name === 'bytes the vocabulary lacks' || name === 'NULs and controls') continue;
      expect(tokenizer.decode(tokenizer.encode(text)), name).toBe(text);
      expect(
        tokenizer.decode(tokenizer.encode(text, { parseSpecialTokens: true }), { includeSpecialTokens: true }),
        name,
      ).toBe(text);
    }
  });

  it('never encodes plain text as a control token', () => {
    for (const { name, text } of nasty) {
      const ids = tokenizer.encode(text);
      expect(
        ids.filter(id => tokenizer.tokenBytes(id).length === 0),
        name,
      ).toEqual([]);
    }
  });

  describe.skipIf(!oracle)(`compared with llama.cpp${oracle ? '' : ' (needs node-llama-cpp)'}`, () => {
    it('agrees on all of WikiText-2', () => {
      const ours = tokenizer.encode(wikitext);
      const theirs = oracle!(wikitext, false);
      console.log(
        `WikiText-2 validation: ${wikitext.length} characters, ${ours.length} ids here, ${theirs.length} in llama.cpp`,
      );
      expect(firstDifference(ours, theirs)).toBeUndefined();
    });

    it.each([false, true])('agrees on edge cases (special tokens: %s)', special => {
      let ids = 0;
      const different = nasty.filter(({ text }) => {
        const ours = tokenizer.encode(text, { parseSpecialTokens: special });
        ids += ours.length;
        return firstDifference(ours, oracle!(text, special)) !== undefined;
      });
      console.log(`nasty strings, special ${special}: ${nasty.length} strings, ${ids} ids, ${different.length} differ`);
      expect(different.map(({ name }) => name)).toEqual([]);
    });

    it("agrees on a chat in the model's own template", () => {
      const template = createChatTemplate({ source: metadata.get('tokenizer.chat_template') as string });
      const messages = [
        { role: 'user', content: 'What is 2 + 2?' },
        { role: 'assistant', content: '4.' },
        { role: 'user', content: 'Thanks!' },
      ];
      const text = template.render(messages);
      expect(text).toMatch(/^<\|im_start\|>system\n.*<\|im_end\|>\n<\|im_start\|>user\nWhat is 2/);
      expect(firstDifference(encodeChat(tokenizer, template, messages), oracle!(text, true))).toBeUndefined();
    });

    // Beyond the basic plane they differ in the newest scripts: their tables are of different Unicode versions.
    it('agrees around every character of the basic plane', () => {
      const different: string[] = [];
      for (let start = 0; start < 0x10000; start += 256) {
        let text = '';
        for (let code = start; code < start + 256; code++) {
          if (code >= 0xd800 && code <= 0xdfff) continue;
          const char = String.fromCodePoint(code);
          text += `a${char}b ${char}1${char}  ${char}\n`;
        }
        if (text && firstDifference(tokenizer.encode(text), oracle!(text, false)) !== undefined) {
          different.push(start.toString(16));
        }
      }
      console.log(`basic plane: ${different.length} of 248 blocks of 256 characters differ`);
      expect(different).toEqual([]);
    });
  });
});

function checksum(ids: number[]): { count: number; sha256: string } {
  const bytes = new Uint8Array(Uint32Array.from(ids).buffer);
  return { count: ids.length, sha256: createHash('sha256').update(bytes).digest('hex') };
}
