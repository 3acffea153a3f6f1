// docs/models.md, and the list of architectures in README.md, from the tables of the sources: what runs, and why others do
// not. Writes both; with --check it fails if one is out of date.
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const root = fileURLToPath(new URL('..', import.meta.url));

const EXPORTS = `
export { architectures } from './src/model/architectures.ts';
export { unsupportedArchitectures } from './src/model/unsupported-architectures.ts';
export { preTokenizerNames } from './src/model/tokenizer/pre-tokenizer.ts';
export { weightFormats } from './src/kernel/weights/types.ts';`;
const bundle = { bundle: true, format: 'esm', platform: 'node', write: false };
const { outputFiles } = await build({ ...bundle, stdin: { contents: EXPORTS, resolveDir: root, loader: 'ts' } });
const tables = await import(`data:text/javascript;base64,${Buffer.from(outputFiles[0].contents).toString('base64')}`);
const measured = JSON.parse(readFileSync(`${root}docs/architectures.json`, 'utf8'));
const { architectures, unsupportedArchitectures, preTokenizerNames, weightFormats } = tables;

const code = text => `\`${text}\``;
const codes = texts => texts.map(code).join(', ');

/** Words in lines of at most 120 characters. */
function wrap(text) {
  const lines = [''];
  for (const word of text.split(' ')) {
    const line = `${lines.at(-1)} ${word}`.trim();
    if (line.length > 120) lines.push(word);
    else lines[lines.length - 1] = line;
  }
  return lines.join('\n');
}

function table(header, rows) {
  const widths = header.map((title, i) => Math.max(title.length, ...rows.map(row => row[i].length)));
  const line = cells => `| ${cells.map((cell, i) => cell.padEnd(widths[i])).join(' | ')} |`;
  return [line(header), line(widths.map(width => '-'.repeat(width))), ...rows.map(line)].join('\n');
}

const supported = Object.entries(architectures).map(([name, { models }]) => [code(name), models]);
const reasons = [...new Set(unsupportedArchitectures.values())];
const withReason = reason =>
  [...unsupportedArchitectures.keys()].filter(name => unsupportedArchitectures.get(name) === reason);

/** Nats: .00012, 3e-5, or less than probabilities in float32 can tell. */
const nats = (value = Number.NaN) => {
  if (Number.isNaN(value)) return '';
  if (Math.abs(value) < 1e-6) return '< 1e-6';
  return Math.abs(value) < 1e-4 ? value.toExponential(0) : value.toPrecision(2).replace('0.', '.');
};
const measuredTable = table(
  ['model', 'js', 'wasm', 'webgpu', 'same answers', 'window', 'f16 cache of 32K'],
  measured.rows.map(({ name, divergence, sameAnswers, window }) => [
    name,
    ...['js', 'wasm', 'webgpu'].map(device => nats(divergence[device])),
    sameAnswers ? 'yes' : 'no',
    window ? String(window.tokens) : '',
    window ? `${(100 * window.share).toFixed(1)} %` : '100 %',
  ]),
);

const page = `# Models

<!-- Written by \`npm run docs\` from the tables of the sources. Do not edit. -->

\`kvasir inspect org/repo:Q4_K_M\` reads the header of a model on the hub, and says whether it runs, why not, its size, and
how much context fits into this machine's memory per codec. \`kvasir pull\` reads it too, before it downloads.

## Architectures

${table(['architecture', 'models'], supported)}

Weights: ${Object.keys(weightFormats).join(', ')}.

## Held against llama.cpp

\`npm run bench -- architectures --out docs/architectures.json\` builds a tiny model of every architecture, with random
weights, the metadata that makes its layers differ, and short windows, and compares it with llama.cpp on up to
${measured.tokens} random tokens:

${measuredTable}

- js, wasm, webgpu: divergence of the next-token distributions from llama.cpp's, in nats per token, with f16 caches; 1e-4 is
  the limit of the tests. webgpu runs on ${measured.gpu}; an empty cell was not measured.
- same answers: on wasm with tq4, tokens and log probabilities are equal, bit for bit, whether the prompt is read, found in
  the cache, or restored from a session.
- window, f16 cache of 32K: with the window of a well-known model (mellum: of the tiny one) and ${measured.layers} layers or more, the bytes of 32,768 tokens
  relative to a cache without windows. \`kvasir inspect\` has those of your model.

Where files and llama.cpp differ, or leave a choice:

- YaRN: \`yarn_attn_factor\` and \`yarn_ext_factor\` are not read, as in llama.cpp; \`yarn_beta_fast\` and \`yarn_beta_slow\` are
  for every architecture, where llama.cpp reads them for few. Converters write 32 and 1, which are the defaults.
- LongRoPE (Phi, MiniCPM): the factors of long contexts are used if \`--context\` is longer than the original context.
- Which layers have a window follows the flags in the file; llama.cpp has fixed periods for most architectures.
- MiniCPM without \`logit_scale\` (files of 2024): logits are divided by width / 256, as converters write it today; llama.cpp
  multiplies by it.
- Layers that predict further tokens (\`nextn_predict_layers\`) are not loaded.

## Not supported

${table(
  ['reason', 'architectures'],
  reasons.map(reason => [reason, codes(withReason(reason))]),
)}

## Tokenizers

Byte-level BPE (\`gpt2\`), BPE of the text itself (\`gemma4\`) and SentencePiece (\`llama\`). With the vocabularies in llama.cpp's repository, ids are those of its test vectors. The pre-tokenizers, each held against llama.cpp on random text:

${wrap(codes(preTokenizerNames))}

## Chat templates

Jinja, rendered as transformers does. Held against it, with tools, calls and thinking: the templates of Qwen3,
Qwen2.5-Coder, Llama 3 to 3.2, Gemma 2 and 3, Phi-3, 3.5, 4 and 4-mini, Mistral 7B, Nemo, Small 3.2 and Ministral 3,
Granite 3.3 and 4.0, gpt-oss, SmolLM3, GLM-4 and 4.6, OLMo 2, EXAONE 3.5, and the format of EXAONE 4.
`;

const list = wrap(
  `GGUF files of ${supported.length} architectures, each held against llama.cpp: ` +
    `${supported.map(([name]) => name).join(', ')}. [Which models these are](docs/models.md#architectures).`,
);

const README = `${root}README.md`;
const section = /(?<=<!-- architectures -->\n)[\s\S]*(?=<!-- \/architectures -->)/;
const files = {
  [`${root}docs/models.md`]: page,
  [README]: readFileSync(README, 'utf8').replace(section, () => `${list}\n`),
};
for (const [path, text] of Object.entries(files)) {
  if (!process.argv.includes('--check')) writeFileSync(path, text);
  else if (readFileSync(path, 'utf8') !== text) {
    console.log(`${path.slice(root.length)} is out of date. Run \`npm run docs\`.`);
    process.exitCode = 1;
  }
}
