// docs/quality-against-bits.svg, the picture of README.md, from the table of Qwen2.5-Coder-1.5B in docs/evaluation.md.
// Writes the picture; with --check it fails if it is out of date.
import { readFileSync, writeFileSync } from 'node:fs';

const source = new URL('../docs/evaluation.md', import.meta.url);
const picture = new URL('../docs/quality-against-bits.svg', import.meta.url);

/** Codecs to show, on which side their label stands, and their family. */
const SHOWN = {
  q8_0: ['end', 'ggml'],
  q4_0: ['start', 'ggml'],
  q4_0h: ['start', 'ggml'],
  tq4: ['end', 'tq'],
  tq3: ['start', 'tq'],
  tq2: ['start', 'tq'],
  'tq4-raw': ['start', 'raw'],
  mead3: ['end', 'mead'],
  mead2: ['end', 'mead'],
};
const LEGEND = [
  ['tq', 'TurboQuant with centered keys'],
  ['mead', 'mead, calibrated once per model'],
  ['ggml', "llama.cpp's cache types with centered keys"],
  ['raw', 'TurboQuant as published'],
];

const table = readFileSync(source, 'utf8').split('Qwen2.5-Coder-1.5B-Instruct Q4_K_M on an H200')[1];
const points = [...table.matchAll(/^\| (\S+) +\| ([\d.]+) +\| ([\d.]+) +\| ([\d.]+) +\| ([\d.]+) +\|$/gm)]
  .map(([, codec, bits, ...values]) => ({ codec, bits: Number(bits), values: values.map(Number) }))
  .filter(({ codec }) => codec in SHOWN);

const [width, height] = [820, 470];
const [left, right, top, bottom] = [70, width - 40, 64, height - 56];
const [minBits, maxBits, minPower, maxPower] = [1, 9, -5, 0.5];
const round = value => Math.round(10 * value) / 10;
const x = bits => round(left + ((bits - minBits) / (maxBits - minBits)) * (right - left));
const y = nats => round(top + ((maxPower - Math.log10(nats)) / (maxPower - minPower)) * (bottom - top));
const line = (x1, y1, x2, y2, kind) => `<line class="${kind}" x1="${x1}" y1="${y1}" x2="${x2}" y2="${y2}"/>`;
const text = (at, above, value, kind) => `<text class="${kind}" x="${at}" y="${above}">${value}</text>`;

const parts = [
  text(left, 26, 'Qwen2.5-Coder-1.5B: how far the packed cache moves its predictions', 'title'),
  text(
    left,
    45,
    'Divergence from an f16 cache; bars from the best to the worst of Wikipedia, TypeScript and Python',
    'note',
  ),
];
for (let power = minPower; power <= maxPower; power++)
  parts.push(
    line(left, y(10 ** power), right, y(10 ** power), 'grid'),
    text(left - 8, y(10 ** power) + 4, String(Number(`1e${power}`)), 'note end'),
  );
for (let bits = minBits; bits <= maxBits; bits++)
  parts.push(line(x(bits), top, x(bits), bottom, 'grid'), text(x(bits), bottom + 18, String(bits), 'note middle'));
parts.push(
  text((left + right) / 2, height - 14, 'bits per value, everything that a page stores', 'middle'),
  `<text class="middle" transform="translate(18 ${(top + bottom) / 2}) rotate(-90)">nats per token (log)</text>`,
  line(left, y(0.1), right, y(0.1), 'limit'),
  text(right - 6, y(0.1) - 6, 'answers are visibly worse above this line', 'note end'),
);
for (const { codec, bits, values } of points) {
  const [side, family] = SHOWN[codec];
  const mean = values.reduce((sum, value) => sum + value) / values.length;
  parts.push(
    `<g class="${family}"><title>${codec}: ${bits} bits, ${values.join(', ')} nats</title>`,
    line(x(bits), y(Math.max(...values)), x(bits), y(Math.min(...values)), 'range'),
    `<circle cx="${x(bits)}" cy="${y(mean)}" r="5"/>`,
    `${text(x(bits) + (side === 'end' ? -10 : 10), y(mean) + 4, codec, side)}</g>`,
  );
}
LEGEND.forEach(([family, label], i) => {
  const [at, above] = [x(5.35), y(1e-3) + 18 * i - 40];
  parts.push(`<circle class="${family}" cx="${at}" cy="${above - 4}" r="5"/>`, text(at + 12, above, label, 'note'));
});

const style = [
  '.page{fill:#fff}text{font:13px ui-sans-serif,system-ui,sans-serif;fill:#222}.title{font-size:16px;font-weight:600}',
  '.note{font-size:12px;fill:#666}.end{text-anchor:end}.middle{text-anchor:middle}.grid{stroke:#e4e4e4}',
  '.limit{stroke:#888;stroke-dasharray:4 4}.range{stroke-width:3;opacity:.45}',
  '.tq{fill:#b45309;stroke:#b45309}.mead{fill:#0f766e;stroke:#0f766e}.ggml{fill:#4f46e5;stroke:#4f46e5}.raw{fill:#888;stroke:#888}',
  'g text{stroke:none;font-weight:500}',
  '@media(prefers-color-scheme:dark){.page{fill:#161616}text{fill:#e4e4e4}.note{fill:#999}.grid{stroke:#333}',
  '.tq{fill:#fbbf24;stroke:#fbbf24}.mead{fill:#2dd4bf;stroke:#2dd4bf}.ggml{fill:#a5b4fc;stroke:#a5b4fc}}',
].join('');
const svg = [
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" role="img" aria-label="Divergence against bits per value">`,
  `<style>${style}</style>`,
  `<rect class="page" width="${width}" height="${height}"/>`,
  ...parts,
  '</svg>\n',
].join('\n');

if (!process.argv.includes('--check')) writeFileSync(picture, svg);
else if (readFileSync(picture, 'utf8') !== svg) {
  console.log('docs/quality-against-bits.svg is not up to date: run `npm run docs`.');
  process.exitCode = 1;
}
