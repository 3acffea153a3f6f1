/**
 * Splits text into words before byte-pair merging. A GGUF names its rule in `tokenizer.ggml.pre`; the patterns are the
 * ones that llama.cpp applies for that name. Each pattern splits the pieces that the previous one left; text between
 * its matches stays a piece.
 *
 * `\s` in a pattern means Unicode White_Space, as in llama.cpp. JavaScript's `\s` adds U+FEFF and lacks U+0085.
 */
import { UnsupportedError } from '../../util/errors.ts';

export interface PreTokenizerRule {
  patterns: readonly string[];
  /** A word that is itself a token becomes that token, whatever the merges say. */
  ignoreMerges: boolean;
  /** Whether to add BOS when the file does not say. */
  addBos: boolean;
}

/** Returns a function that splits a text into words; joined, they are the text. */
export function createPreTokenizer({ patterns }: PreTokenizerRule): (text: string) => string[] {
  const whiteSpace = (pattern: string) =>
    pattern.replaceAll('\\s', '\\p{White_Space}').replaceAll('\\S', '\\P{White_Space}');
  const regExps = patterns.map(pattern => new RegExp(whiteSpace(pattern), 'gu'));
  return text => regExps.reduce((pieces, regExp) => pieces.flatMap(piece => splitAround(piece, regExp)), [text]);
}

/** The matches of a pattern and the text between them. */
function splitAround(text: string, pattern: RegExp): string[] {
  const pieces: string[] = [];
  let end = 0;
  for (const { 0: match, index } of text.matchAll(pattern)) {
    if (index > end) pieces.push(text.slice(end, index));
    if (match !== '') pieces.push(match);
    end = index + match.length;
  }
  if (end < text.length) pieces.push(text.slice(end));
  return pieces;
}

const GPT2 = String.raw`'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)`;
const CONTRACTION = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`;
const REST = String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const words = (digits: string) => String.raw`${CONTRACTION}|[^\r\n\p{L}\p{N}]?\p{L}+|${digits}|${REST}`;

// Case-aware words: letters except a-z, then letters except A-Z (llama.cpp distinguishes case in ASCII only).
const NOT_LOWER = String.raw`(?:(?![a-z])\p{L})`;
const NOT_UPPER = String.raw`(?:(?![A-Z])\p{L})`;
const cased = (suffix: string, digits: string) =>
  String.raw`[^\r\n\p{L}\p{N}]?${NOT_LOWER}*${NOT_UPPER}+${suffix}|[^\r\n\p{L}\p{N}]?${NOT_LOWER}+${NOT_UPPER}*${suffix}|` +
  String.raw`${digits}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`;

const ASCII_PUNCTUATION = String.raw`[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_\x60{|}~]`;
const DEEPSEEK3 = [
  String.raw`\p{N}{1,3}`,
  '[一-龥\u3040-ゟ゠-ヿ]+',
  String.raw`${ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
];
const CJK = '[一-龥\u0800-一가-\ud7ff]+';
const BLOOM = String.raw` ?[^(\s|.,!?…。，、।۔،)]+`;

// The cased letters in DeepSeek LLM's pattern: Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Coptic, ...
const DEEPSEEK_LETTERS =
  String.raw`A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373` +
  String.raw`\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f` +
  String.raw`\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77` +
  String.raw`\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d` +
  String.raw`\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb` +
  String.raw`\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128` +
  String.raw`\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4` +
  String.raw`\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf` +
  String.raw`\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\u{10400}-\u{1044f}\u{104b0}-\u{104d3}` +
  String.raw`\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}`;

const rule = (patterns: readonly string[], flags: Partial<PreTokenizerRule> = {}): PreTokenizerRule => ({
  patterns,
  ignoreMerges: false,
  addBos: false,
  ...flags,
});

/** Of tokenizers that merge over whole lines. */
export const linesRule = rule([String.raw`[^\n]+|\n+`], { addBos: true });

const RULES: readonly [names: string, rule: PreTokenizerRule][] = [
  ['gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4', rule([GPT2])],
  ['smollm starcoder refact command-r codeshell exaone minerva-7b mellum2', rule([String.raw`\p{N}`, GPT2])],
  [
    'llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2',
    rule([words(String.raw`\p{N}{1,3}`)], { ignoreMerges: true, addBos: true }),
  ],
  ['dbrx smaug-bpe glm4 chatglm-bpe', rule([words(String.raw`\p{N}{1,3}`)])],
  ['minicpm5', rule([String.raw`\p{N}{1,3}`, words(String.raw`\p{N}+`)], { ignoreMerges: true })],
  ['qwen2 deepseek-r1-qwen kormo megrez stablelm2 hunyuan solar-open grok-2', rule([words(String.raw`\p{N}`)])],
  [
    'qwen35',
    rule([
      String.raw`${CONTRACTION}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
    ]),
  ],
  [
    'bailingmoe bailingmoe2 llada-moe',
    rule([
      String.raw`'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+`,
    ]),
  ],
  [
    'seed-coder',
    rule([String.raw`${CONTRACTION}|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`]),
  ],
  ['tekken', rule([cased('', String.raw`\p{N}`)], { ignoreMerges: true, addBos: true })],
  ['gpt-4o llama4 kanana2 minimax-m2', rule([cased(`${CONTRACTION}?`, String.raw`\p{N}{1,3}`)])],
  [
    'deepseek-llm',
    rule([
      String.raw`[\r\n]`,
      String.raw`\s?[${DEEPSEEK_LETTERS}]+`,
      String.raw`\s?[!-/:-~！-／：-～‘-‟\u3000-。]+`,
      // The lookbehind allows a match only at the start of a run: \s+$ would take quadratic time on long runs.
      String.raw`(?<!\s)\s+$`,
      CJK,
      String.raw`\p{N}+`,
    ]),
  ],
  ['deepseek-coder', rule([String.raw`[\r\n]`, String.raw`\s?\p{L}+`, String.raw`\s?\p{P}+`, CJK, String.raw`\p{N}`])],
  ['deepseek-v3 hunyuan-dense joyai-llm hy_v4', rule(DEEPSEEK3)],
  ['falcon', rule([String.raw`[\p{P}\$\+<=>\^~\|\x60]+`, GPT2, '[0-9][0-9][0-9]'])],
  ['poro-chat bloom gpt3-finnish', rule([BLOOM])],
  ['viking', rule([BLOOM, String.raw`\p{N}`])],
  ['default', rule([String.raw`[\p{P}\$\+<=>\^~\|]+`, GPT2, String.raw`\p{N}+`, '[0-9][0-9][0-9]'])],
];

const BY_NAME = new Map(RULES.flatMap(([names, rule]) => names.split(' ').map(name => [name, rule] as const)));

export const preTokenizerNames: readonly string[] = [...BY_NAME.keys()].sort();

export function preTokenizerRule(name: string): PreTokenizerRule {
  const rule = BY_NAME.get(name);
  if (rule) return rule;
  throw new UnsupportedError(
    `The model's pre-tokenizer (tokenizer.ggml.pre) is ${JSON.stringify(name.slice(0, 64))}, which is not supported. ` +
      `Use a model with one of: ${preTokenizerNames.join(', ')}.`,
  );
}
