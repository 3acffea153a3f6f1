/** A subset of Markdown as elements: what models write most. Text is never inserted as HTML. */
import type { ComponentChildren, JSX } from 'preact';
import { useMemo } from 'preact/hooks';
import { Code } from './code.tsx';
import { Formula } from './formula.tsx';

/** Read again only when it changes: the other messages are shown again with each token of an answer. */
export function Markdown({ text }: { text: string }) {
  const blocks = useMemo(() => parseBlocks(text), [text]);
  return <div class="markdown">{blocks}</div>;
}

type Block = JSX.Element;

/** Blocks are separated by their first characters; an open code fence runs to the end, so that text can stream. */
export function parseBlocks(text: string): Block[] {
  const blocks: Block[] = [];
  const lines = text.replaceAll('\r\n', '\n').split('\n');
  let i = 0;
  const takeWhile = (matches: (line: string) => boolean): string[] => {
    const start = i;
    while (i < lines.length && matches(lines[i]!)) i++;
    return lines.slice(start, i);
  };
  while (i < lines.length) {
    const line = lines[i]!;
    const key = i;
    const formula = formulaAt(lines, i);
    const [, hashes, title] = /^(#{1,6})\s+(.*)$/.exec(line) ?? [];
    if (line.trim() === '') i++;
    else if (FENCE.test(line)) {
      i++;
      const code = takeWhile(inside => !FENCE.test(inside)).join('\n');
      blocks.push(<Code key={key} info={line.replace(FENCE, '').trim()} code={code} isComplete={i++ < lines.length} />);
    } else if (formula) {
      i += formula.lines;
      blocks.push(<Formula key={key} tex={formula.tex} source={formula.source} isDisplay />);
    } else if (line.includes('|') && DELIMITERS.test(lines[i + 1] ?? '')) {
      const [head, , ...rows] = takeWhile(row => row.includes('|'));
      blocks.push(<Table key={key} head={cellsOf(head!)} rows={rows.map(cellsOf)} />);
    } else if (hashes) {
      i++;
      blocks.push(<Heading key={key} level={hashes.length} text={title!} />);
    } else if (BULLET.test(line)) blocks.push(<ul key={key}>{items(takeWhile(isItem(BULLET)), BULLET)}</ul>);
    else if (NUMBER.test(line))
      blocks.push(
        <ol key={key} start={Number.parseInt(line.trim(), 10)}>
          {items(takeWhile(isItem(NUMBER)), NUMBER)}
        </ol>,
      );
    else if (QUOTE.test(line)) {
      const quoted = takeWhile(line => QUOTE.test(line)).map(line => line.replace(QUOTE, ''));
      blocks.push(<blockquote key={key}>{parseBlocks(quoted.join('\n'))}</blockquote>);
    } else blocks.push(<p key={key}>{parseInline([lines[i++], ...takeWhile(isParagraph)].join('\n'))}</p>);
  }
  return blocks;
}

const FENCE = /^\s*```/;
const BULLET = /^\s*[-*+]\s+/;
const NUMBER = /^\s*\d{1,9}[.)]\s+/;
const QUOTE = /^>\s?/;
const DISPLAY = /^\s*(\$\$|\\\[)/;

const isParagraph = (line: string): boolean =>
  line.trim() !== '' && ![FENCE, BULLET, NUMBER, QUOTE, DISPLAY, /^#{1,6}\s/].some(start => start.test(line));

/** A formula on lines of its own. One without an end, as while it streams, is a paragraph. */
function formulaAt(lines: readonly string[], first: number) {
  if (!DISPLAY.test(lines[first]!)) return undefined;
  const match = DISPLAY_LINES.exec(lines.slice(first, first + MAX_FORMULA_LINES).join('\n'));
  return match && { tex: match[1] ?? match[2]!, source: match[0], lines: match[0].split('\n').length };
}

const DISPLAY_LINES = /^\s*(?:\$\$((?:(?!\$\$).)+)\$\$|\\\[((?:(?!\\\]).)+)\\\])[ \t]*(?=\n|$)/s;
const MAX_FORMULA_LINES = 100;

/** An item, or an indented line that continues one. */
const isItem = (start: RegExp) => (line: string) => start.test(line) || /^\s+\S/.test(line);

/** Lines that are indented further belong to the item above: its text goes on, or they are a list in it. */
function items(lines: readonly string[], start: RegExp): Block[] {
  const indent = indentOf(lines[0]!);
  const texts: string[][] = [];
  for (const line of lines) {
    if (start.test(line) && indentOf(line) <= indent + 1) texts.push([line.replace(start, '')]);
    else texts.at(-1)!.push(line.slice(Math.min(indentOf(line), indent + NESTED)));
  }
  return texts.map((text, i) => (
    <li key={i}>{text.length === 1 ? parseInline(text[0]!) : parseBlocks(text.join('\n'))}</li>
  ));
}

/** The least indentation of a nested list. */
const NESTED = 2;

const indentOf = (line: string): number => line.length - line.trimStart().length;

/** Between the head of a table and its rows. */
const DELIMITERS = /^\s*\|?(\s*:?-+:?\s*\|)+(\s*:?-+:?\s*)?$/;

const cellsOf = (row: string): string[] =>
  row
    .trim()
    .replace(/^\||\|$/g, '')
    .split('|')
    .map(cell => cell.trim());

function Table({ head, rows }: { head: readonly string[]; rows: readonly (readonly string[])[] }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reachable by keyboard
    <div class="table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {head.map((cell, i) => (
              <th key={i}>{parseInline(cell)}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {head.map((_, j) => (
                <td key={j}>{parseInline(row[j] ?? '')}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Under the title of the page and the names of the speakers. */
function Heading({ level, text }: { level: number; text: string }) {
  const Tag = `h${Math.min(6, level + 2)}` as 'h3';
  return <Tag>{parseInline(text)}</Tag>;
}

const INLINE = new RegExp(
  [
    /(?<fence>`+)(?<code>.+?)\k<fence>/,
    /\\(?<escaped>[`*_$])/,
    /\*\*(?<bold>.+?)\*\*/,
    /\*(?<italic>\S(?:.*?\S)?)\*/,
    /\$\$(?<display>(?:(?!\$\$).)+)\$\$/,
    /\\\[(?<display2>.+?)\\\]/,
    /\\\((?<math>.+?)\\\)/,
    // Not amounts of money or names of variables: no spaces inside, and neither a word nor a number around it.
    /(?<![\w$])\$(?<math2>[^\s$](?:[^$\n]*[^\s$\\])?)\$(?=th\b|[^\w$]|$)/,
    /\[(?<label>[^\]]+)\]\((?<target>(?:https?:\/\/|mailto:)[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)\)/,
    /(?<address>\bhttps?:\/\/[^\s<>()"'`*]*[^\s<>()"'`*.,:;!?\]])/,
  ]
    .map(({ source }) => source)
    .join('|'),
  'gs',
);

function parseInline(text: string): ComponentChildren[] {
  const parts: ComponentChildren[] = [];
  let end = 0;
  for (const match of text.matchAll(INLINE)) {
    const { 0: source, index, groups: found = {} } = match;
    parts.push(text.slice(end, index));
    end = index + source.length;
    const display = found.display ?? found.display2;
    const math = found.math ?? found.math2;
    if (found.code !== undefined) parts.push(<code>{found.code}</code>);
    else if (found.escaped) parts.push(found.escaped);
    else if (found.bold) parts.push(<strong>{parseInline(found.bold)}</strong>);
    else if (found.italic) parts.push(<em>{parseInline(found.italic)}</em>);
    else if (display) parts.push(<Formula tex={display} source={source} isDisplay />);
    else if (math) parts.push(<Formula tex={math} source={source} isDisplay={false} />);
    else parts.push(<Link address={found.target ?? found.address!}>{found.label}</Link>);
  }
  return [...parts, text.slice(end)];
}

/** The pattern above admits only addresses of pages and mail. */
const Link = ({ address, children }: { address: string; children?: string }) => (
  <a href={address} target="_blank" rel="noopener noreferrer">
    {children ?? address}
  </a>
);
