/** The comparison as an image to show to others: the bars, the strip, the beginning of both answers. */
import { texts } from '../texts/index.ts';
import { saveFile } from '../ui/save-file.ts';
import type { Pane } from './comparison.ts';
import { levelOf } from './difference.ts';
import { type Measure, measuresOf, shareOf } from './measures.ts';

export interface Picture {
  /** What was asked. */
  title: string;
  questions: readonly string[];
  panes: readonly [Pane, Pane];
  probabilities: readonly (readonly [number, number])[];
  summary: string;
}

const [WIDTH, HEIGHT] = [1200, 675];
const MARGIN = 56;
const COLUMN = (WIDTH - 3 * MARGIN) / 2;
const TEXT = 'font-family="system-ui, sans-serif" fill="#231e15"';
/** As the levels of compare.css, in light. */
const LEVEL_COLORS = ['#e2d9c8', '#f5d588', '#f0b429', '#a3261b'];
const BAR_COLORS = ['#b9b0a0', '#f0b429'];
/** Characters of a line at the size of the answers, and lines of them. */
const [LINE_CHARACTERS, ANSWER_LINES] = [62, 9];

export async function savePicture(picture: Picture): Promise<void> {
  const image = new Image();
  image.src = URL.createObjectURL(new Blob([drawPicture(picture)], { type: 'image/svg+xml' }));
  await image.decode();
  const canvas = Object.assign(document.createElement('canvas'), { width: 2 * WIDTH, height: 2 * HEIGHT });
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(image.src);
  const png = await new Promise<Blob>((resolve, reject) => {
    canvas.toBlob(blob => (blob ? resolve(blob) : reject(new Error(texts.compare.noImage))), 'image/png');
  });
  const [left, right] = picture.panes;
  saveFile(png, `kvasir-${left.codec}-${right.codec}.png`);
}

/** An SVG. */
function drawPicture({ title, questions, panes, probabilities, summary }: Picture): string {
  const cell = (WIDTH - 2 * MARGIN) / Math.max(1, probabilities.length);
  const cells = probabilities.map(
    ([left, right], i) =>
      `<rect x="${MARGIN + i * cell}" y="296" width="${cell}" height="22" fill="${LEVEL_COLORS[levelOf(left, right)]}"/>`,
  );
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" width="${WIDTH}" height="${HEIGHT}">
<rect width="100%" height="100%" fill="#faf7f1"/>
${text(MARGIN, 68, 26, texts.compare.imageTitle(panes[0].codec, panes[1].codec), 'font-weight="600"')}
${lines(MARGIN, 104, 17, wrap(title, 120, 1))}
${measuresOf(panes).map(drawBars(panes)).join('\n')}
${cells.join('\n')}
${lines(MARGIN, 346, 16, wrap(summary, 125, 2))}
${panes.map((pane, i) => answersOf(MARGIN + i * (COLUMN + MARGIN), pane, questions)).join('\n')}
${text(WIDTH - MARGIN, HEIGHT - 24, 14, texts.app.name, 'text-anchor="end" fill-opacity=".6"')}
</svg>`;
}

/** Two measures or three, side by side. */
const drawBars = (panes: Picture['panes']) => (measure: Measure, column: number, all: readonly Measure[]) => {
  const { title, of, format } = measure;
  const step = (WIDTH - 2 * MARGIN) / all.length;
  const x = MARGIN + column * step;
  const values = panes.map(of);
  const rows = panes.map(({ codec }, i) => {
    const y = 176 + 44 * i;
    const width = (step - SPACE_BESIDE_BAR) * shareOf(values, i);
    return `${text(x, y + 20, 16, codec)}
<rect x="${x + 90}" y="${y}" width="${Math.max(2, width)}" height="28" rx="4" fill="${BAR_COLORS[i]}"/>
${text(x + 100 + width, y + 20, 16, format(values[i]!))}`;
  });
  return [text(x, 160, 15, title, 'fill-opacity=".7"'), ...rows].join('\n');
};

/** For the names of codecs, and the values. */
const SPACE_BESIDE_BAR = 240;

const answersOf = (x: number, { codec, answers }: Pane, questions: readonly string[]): string =>
  `${text(x, 412, 16, codec, 'font-weight="600"')}
${lines(x, 438, 15, wrapAll(answers, questions))}`;

/** Each answer begins a line, after its question if there are several. */
function wrapAll(answers: Pane['answers'], questions: readonly string[]): string[] {
  const texts = answers.map((tokens, i) => {
    const text = tokens.map(token => token.text).join('');
    return questions.length > 1 ? `${questions[i]} ${text}` : text;
  });
  return texts.flatMap(content => wrap(content, LINE_CHARACTERS, ANSWER_LINES)).slice(0, ANSWER_LINES);
}

const lines = (x: number, y: number, size: number, content: readonly string[]): string =>
  content.map((line, i) => text(x, y + 1.45 * size * i, size, line)).join('\n');

const text = (x: number, y: number, size: number, content: string, more = ''): string =>
  `<text x="${x}" y="${y}" font-size="${size}" ${TEXT} ${more}>${escapeXml(content)}</text>`;

/** Words in lines of at most so many characters; the last line ends with an ellipsis if there is more. */
function wrap(content: string, characters: number, maxLines: number): string[] {
  const wrapped: string[] = [];
  for (const word of content.split(/\s+/).filter(Boolean)) {
    const joined = `${wrapped.at(-1)} ${word}`;
    if (wrapped.length > 0 && joined.length <= characters) wrapped[wrapped.length - 1] = joined;
    else wrapped.push(word.length > characters ? `${word.slice(0, characters - 1)}…` : word);
  }
  if (wrapped.length <= maxLines) return wrapped;
  return [...wrapped.slice(0, maxLines - 1), `${wrapped[maxLines - 1]!.slice(0, characters - 2)} …`];
}

/** Also without characters that XML does not allow. */
const escapeXml = (content: string): string =>
  content
    .replace(/[^\P{Cc}\t\n\r]/gu, '')
    .replaceAll('&', '&amp;')
    .replaceAll('<', '&lt;')
    .replaceAll('>', '&gt;');
