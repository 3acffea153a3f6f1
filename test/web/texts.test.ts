/** Every text that the web app shows is in its table of texts, so that a translation is one file. */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseSync } from 'vite';
import { describe, expect, it } from 'vitest';
import { english } from '../../web/src/texts/english.ts';
import { chooseLanguage, texts } from '../../web/src/texts/index.ts';

const folder = fileURLToPath(new URL('../../web/src/', import.meta.url));

/** Attributes and properties that people read. */
const SHOWN_NAMES = new Set(
  'title label aria-label alt placeholder summary text question detail reason choice action goodAt'.split(' '),
);
const SHOWN_BY = /^(showNotice|refuse|\w*Error)$/;
const SHOWN_SIGNALS = /^(announcement|notice|problem|failure|attachmentError)$/;
const SENTENCE = /^\p{Lu}\p{Ll}+,? \S*\p{L}|^\p{L}.* .*\p{L}[.…?!]$/su;

/** What has texts outside the table for a reason. */
const EXCEPTIONS = new Map([
  ['state/sample.ts', 'questions on the sample document, in its language'],
  ['documents/docx.ts', 'errors that read-document.ts replaces'],
  ['documents/zip.ts', 'errors that read-document.ts replaces'],
]);

type Node = { type: string } & Record<string, unknown>;
const isNode = (value: unknown): value is Node => typeof (value as Node | null)?.type === 'string';
const nodesIn = (value: unknown): Node[] => [value].flat().filter(isNode);
const nameOf = (value: unknown) => {
  const { name, value: quoted } = (value ?? {}) as { name?: string; value?: string };
  return name ?? quoted ?? '';
};

function textOf(node: Node): string {
  if (node.type === 'TemplateLiteral')
    return (node.quasis as { value: { cooked: string } }[]).map(({ value }) => value.cooked).join('');
  return /^(JSXText|Literal)$/.test(node.type) && typeof node.value === 'string' ? node.value : '';
}

/** What a node contains, and whether a string there would be read by people. */
function partsOf(node: Node, isShown: boolean): (readonly [unknown, boolean])[] {
  const all = Object.values(node).flat();
  switch (node.type) {
    case 'JSXElement':
    case 'JSXFragment':
      return [
        [node.openingElement, false],
        [node.children, true],
      ];
    case 'JSXAttribute':
      return [[node.value, SHOWN_NAMES.has(nameOf(node.name))]];
    case 'Property':
      return [[node.value, SHOWN_NAMES.has(nameOf(node.key))]];
    case 'AssignmentExpression':
      return [[node.right, SHOWN_SIGNALS.test(nameOf((node.left as Node).object))]];
    case 'CallExpression':
    case 'NewExpression': {
      const [first, ...others] = node.arguments as Node[];
      return [
        [node.callee, false],
        [first, SHOWN_BY.test(nameOf(node.callee))],
        [others, false],
      ];
    }
    case 'ConditionalExpression':
      return [
        [node.test, false],
        [[node.consequent, node.alternate], isShown],
      ];
    case 'BinaryExpression':
      return [[all, isShown && node.operator === '+']];
    case 'JSXExpressionContainer':
    case 'LogicalExpression':
    case 'TemplateLiteral':
    case 'ArrayExpression':
    case 'ParenthesizedExpression':
      return [[all, isShown]];
    default:
      return [[all, false]];
  }
}

/** Texts in a source file that are shown, or look like sentences. */
function textsIn(file: string, source: string): string[] {
  const found: string[] = [];
  const visit = (node: Node, isShown: boolean) => {
    const text = textOf(node);
    if (isShown ? /\p{L}/u.test(text) : SENTENCE.test(text)) found.push(text.trim());
    for (const [part, isPartShown] of partsOf(node, isShown))
      for (const inner of nodesIn(part)) visit(inner, isPartShown);
  };
  const { program, errors } = parseSync(file, source);
  expect(errors).toEqual([]);
  visit(program as unknown as Node, false);
  return found;
}

describe('texts of the web app', () => {
  it('are in the table, and nowhere else', () => {
    const files = readdirSync(folder, { recursive: true, encoding: 'utf8' })
      .filter(file => /\.tsx?$/.test(file) && !file.startsWith('texts/'))
      .map(file => ({ file, found: textsIn(file, readFileSync(`${folder}${file}`, 'utf8')) }))
      .filter(({ found }) => found.length > 0);
    expect(files.filter(({ file }) => !EXCEPTIONS.has(file))).toEqual([]);
    expect(files.map(({ file }) => file).sort()).toEqual([...EXCEPTIONS.keys()].sort());
  });

  it('are found wherever they are shown', () => {
    const source = `
      export function Wrong({ n, engine }: { n: number; engine?: 'server' }) {
        const help = 'Drop a document here';
        if (n > 9) showNotice(n > 99 ? 'full' : \`\${n} left\`);
        if (n < 0) throw new EngineError('gone', 'lost');
        announcement.value = 'Stopped';
        askToDelete({ question: \`Delete \${n}?\`, kind: 'box' });
        return (
          <button type="button" class="icon-button small" aria-label="Close" title={n ? 'Send' : texts.stop}>
            {engine ?? 'code'} Go on <Slider label={'Top' + n} name="topP" /> · {n === 1 && 'one'}
            {['keys'].map(side => <p key={side}>{side === 'keys' ? help : 'none'}</p>)}
          </button>
        );
      }`;
    expect(textsIn('wrong.tsx', source).join(' | ')).toBe(
      'Drop a document here | full | left | gone | Stopped | Delete ? | Close | Send | code | Go on | Top | one | none',
    );
  });

  it('are in the first language of the browser that has a table, else in English', () => {
    const tables = new Set(['en', 'de']);
    expect(chooseLanguage(['fr', 'de-AT', 'en'], tables)).toBe('de');
    expect(chooseLanguage(['EN-gb', 'de'], tables)).toBe('en');
    expect([chooseLanguage(['fr'], tables), chooseLanguage([], tables)]).toEqual(['en', 'en']);
    expect(texts).toBe(english);
  });

  it('say one thing or many', () => {
    expect([0, 1, 2, 5540].map(english.tokens)).toEqual(['0 tokens', '1 token', '2 tokens', '5,540 tokens']);
    expect([1, 2].map(english.cache.left)).toEqual(['1 token still fits', '2 tokens still fit']);
    expect([0, 1, 2].map(english.storage.conversations)).toEqual([
      'No conversations',
      '1 conversation',
      '2 conversations',
    ]);
  });
});
