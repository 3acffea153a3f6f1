/** The text of a Word document: paragraphs, headings, lists and tables, in the order of the page. */
import { readZipFile } from './zip.ts';

const MAX_XML_BYTES = 200_000_000;

/** Throws if it is damaged. */
export async function readDocx(bytes: Uint8Array<ArrayBuffer>): Promise<string> {
  const xml = await readZipFile(bytes, 'word/document.xml', MAX_XML_BYTES);
  if (!xml) throw new Error('No word/document.xml.');
  const page = new DOMParser().parseFromString(new TextDecoder().decode(xml), 'application/xml');
  const body = childrenOf(page.documentElement, 'body')[0];
  if (!body || page.querySelector('parsererror')) throw new Error('word/document.xml is damaged.');
  return blocksOf(body).join('\n\n');
}

/** Elements by their names without prefix: writers choose prefixes, and there are two namespaces. */
const childrenOf = (parent: Element | undefined, name: string): Element[] =>
  [...(parent?.children ?? [])].filter(({ localName }) => localName === name);

const attributeOf = (element: Element | undefined, name: string): string | undefined =>
  [...(element?.attributes ?? [])].find(({ localName }) => localName === name)?.value;

/** Paragraphs and tables; items of a list are one block. */
function blocksOf(parent: Element): string[] {
  const blocks: string[] = [];
  let wasItem = false;
  for (const child of parent.children) {
    const isItem = child.localName === 'p' && levelOf(child) !== undefined;
    const found = child.localName === 'p' ? [paragraphOf(child)] : child.localName === 'tbl' ? [tableOf(child)] : [];
    // Content controls and the like: what they contain.
    if (CONTAINERS.has(child.localName)) found.push(...blocksOf(child));
    for (const block of found)
      if (block.trim() === '') wasItem = false;
      else if (isItem && wasItem) blocks.push(`${blocks.pop()}\n${block}`);
      else blocks.push(block);
    wasItem = isItem;
  }
  return blocks;
}

const CONTAINERS = new Set(['sdt', 'sdtContent', 'customXml', 'ins', 'smartTag']);

const styleOf = (paragraph: Element, name: string): Element | undefined =>
  childrenOf(childrenOf(paragraph, 'pPr')[0], name)[0];

/** The depth in a list; undefined if it is in none. */
function levelOf(paragraph: Element): number | undefined {
  const numbering = styleOf(paragraph, 'numPr');
  return numbering && (Number(attributeOf(childrenOf(numbering, 'ilvl')[0], 'val')) || 0);
}

function paragraphOf(paragraph: Element): string {
  const text = textOf(paragraph).trim();
  const level = levelOf(paragraph);
  const style = attributeOf(styleOf(paragraph, 'pStyle'), 'val') ?? '';
  const [, heading = /^title$/i.test(style) ? '1' : undefined] = /^heading ?([1-6])$/i.exec(style) ?? [];
  if (text === '') return '';
  if (heading) return `${'#'.repeat(Number(heading))} ${text}`;
  return level === undefined ? text : `${'  '.repeat(level)}- ${text}`;
}

/** As Markdown: models know it. */
function tableOf(table: Element): string {
  const rows = childrenOf(table, 'tr').map(row =>
    childrenOf(row, 'tc').map(cell => blocksOf(cell).join(' ').replace(/\s+/g, ' ').replaceAll('|', '\\|')),
  );
  const [head = [], ...rest] = rows;
  return [head, head.map(() => '---'), ...rest].map(cells => `| ${cells.join(' | ')} |`).join('\n');
}

/** Deleted text and instructions of fields have other names than `t`; a fallback repeats what is before it. */
function textOf({ children }: Element): string {
  let text = '';
  for (const child of children) {
    const { localName } = child;
    if (localName === 't') text += child.textContent;
    else if (localName === 'tab') text += '\t';
    else if (localName === 'br' || localName === 'cr') text += '\n';
    else if (localName === 'noBreakHyphen') text += '-';
    else if (localName !== 'pPr' && localName !== 'rPr' && localName !== 'Fallback') text += textOf(child);
  }
  return text;
}
