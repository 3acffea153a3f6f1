// The sizing table in docs/deploy.md, from `kvasir inspect --shape`. Prints it; --write replaces it in the page. Needs dist/.
import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const main = fileURLToPath(new URL('../dist/cli/main.js', import.meta.url));
const page = new URL('../docs/deploy.md', import.meta.url);

/** Shapes of the KV cache of known models: layers, KV heads, head dimension. */
const shapes = {
  'SmolLM2-135M': [30, 3, 64],
  'Llama-3.2-1B': [16, 8, 64],
  'Qwen3-4B': [36, 8, 128],
  'Llama-3.1-8B': [32, 8, 128],
  'Qwen3-32B': [64, 8, 128],
  'Llama-3.3-70B': [80, 8, 128],
};
const codecs = ['f16', 'q8_0', 'tq4', 'tq3', 'tq2'];
const contexts = [4096, 32768];
const GIB = 2 ** 30;

function measure(shape, context) {
  const args = ['inspect', '--shape', shape.join('x'), '--context', context, '--kv', codecs.join(), '--json'];
  return JSON.parse(execFileSync(process.execPath, [main, ...args].map(String)));
}

const count = x => (x >= 10 ? Math.floor(x).toLocaleString('en') : x.toPrecision(2));

const rows = Object.entries(shapes).flatMap(([model, shape]) => {
  const [short, long] = contexts.map(context => measure(shape, context));
  return codecs.map((codec, i) => [
    i === 0 ? model : '',
    `\`${codec}\``,
    count(GIB / short[i].bytesPerToken),
    ...[short, long].map(reports => count(GIB / reports[i].totalBytes)),
    `${((short[i].windowBytes + short[i].paddingBytes) / 2 ** 20).toFixed(1)} MiB`,
  ]);
});
const header = ['model', 'codec', 'tokens per GiB', 'sequences of 4K', 'sequences of 32K', 'f16 part of one'];
const widths = header.map((title, i) => Math.max(title.length, ...rows.map(row => row[i].length)));
const line = cells =>
  `| ${cells.map((cell, i) => (i < 2 ? cell.padEnd(widths[i]) : cell.padStart(widths[i]))).join(' | ')} |`;
const rule = `| ${widths.map((width, i) => (i < 2 ? '-'.repeat(width) : `${'-'.repeat(width - 1)}:`)).join(' | ')} |`;
const table = [line(header), rule, ...rows.map(line)].join('\n');

if (process.argv.includes('--write'))
  writeFileSync(
    page,
    readFileSync(page, 'utf8').replace(/^\| model[\s\S]*?(?=\n\n)/m, () => table),
  );
else console.log(table);
