/** What models write: Markdown, code and formulas as elements. How they look is tested in test/browsers. */
import { readFileSync } from 'node:fs';
import fc from 'fast-check';
import type { VNode } from 'preact';
import { describe, expect, it } from 'vitest';
import { Code } from '../../web/src/ui/code.tsx';
import { Formula } from '../../web/src/ui/formula.tsx';
import { highlight } from '../../web/src/ui/highlight.ts';
import { languageOf } from '../../web/src/ui/languages.ts';
import { parseBlocks } from '../../web/src/ui/markdown.tsx';

/** Elements as text, without attributes but those that are named here. Code and formulas are not drawn. */
const htmlOf = (node: unknown): string => {
  if (Array.isArray(node)) return node.map(htmlOf).join('');
  if (typeof node !== 'object' || node === null) return String(node ?? '');
  const { type, props } = node as VNode<Record<string, unknown>>;
  if (type === (Code as unknown)) return `<code ${props.info}${props.isComplete ? '' : '…'}>${props.code}</code>`;
  if (type === (Formula as unknown))
    return props.isDisplay ? `<math display>${props.tex}</math>` : `<math>${props.tex}</math>`;
  if (typeof type === 'function') return htmlOf((type as (props: unknown) => unknown)(props));
  const attributes = props.href ? ` href=${props.href} rel=${props.rel}` : '';
  return `<${type}${attributes}>${htmlOf(props.children)}</${type}>`;
};
const render = (...lines: string[]) => htmlOf(parseBlocks(lines.join('\n')));

describe('Markdown', () => {
  it('has lists in lists', () => {
    expect(render('1. a', '2. b:', '   - c', '     d', '   - e', '3. f')).toBe(
      '<ol><li>a</li><li><p>b:</p><ul><li><p>c\nd</p></li><li>e</li></ul></li><li>f</li></ol>',
    );
  });

  it('has tables, with as many cells per row as the head has', () => {
    expect(render('| a | **b** |', '| --- | --: |', '| 1 | 2 | 3 |', '| 4 |')).toBe(
      '<div><table><thead><tr><th>a</th><th><strong>b</strong></th></tr></thead>' +
        '<tbody><tr><td>1</td><td>2</td></tr><tr><td>4</td><td></td></tr></tbody></table></div>',
    );
    expect(render('a | b', 'no table')).toBe('<p>a | b\nno table</p>');
  });

  it('links to pages and mail, and to nothing else', () => {
    const link = (address: string, label = address) => `<a href=${address} rel=noopener noreferrer>${label}</a>`;
    expect(render('[a](https://a.org/b_(c)?d=1#e), [m](mailto:a@b.org)')).toBe(
      `<p>${link('https://a.org/b_(c)?d=1#e', 'a')}, ${link('mailto:a@b.org', 'm')}</p>`,
    );
    expect(render('See https://a.org/b, or (http://c.de/).')).toBe(
      `<p>See ${link('https://a.org/b')}, or (${link('http://c.de/')}).</p>`,
    );
    for (const target of ['javascript:alert(1)', 'JaVaScRiPt:alert(1)', 'data:text/html,x', '//a.org', 'file:///etc'])
      expect(render(`[a](${target})`), target).not.toContain('<a');
    expect(render('<img src=x onerror=alert(1)>')).toBe('<p><img src=x onerror=alert(1)></p>');
  });

  it('says whether a block of code is complete, so that it is colored once', () => {
    expect(render('```ts', 'let a = 1;')).toBe('<code ts…>let a = 1;</code>');
    expect(render('```ts', 'let a = $1$;', '```', 'b')).toBe('<code ts>let a = $1$;</code><p>b</p>');
  });

  it('never loops, and loses no word', () => {
    const piece = fc.constantFrom(
      ...'$ $$ \\[ \\] \\( \\) ` ``` * ** [ ]( > - 1. # | |- a b5 \n'.split(' '),
      '\n',
      '  ',
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 40 }), pieces => {
        const text = pieces.join('');
        expect(
          render(text)
            .match(/a|b5/g)
            ?.filter(word => word === 'b5').length ?? 0,
        ).toBe(text.match(/b5/g)?.length ?? 0);
      }),
    );
  });
});

describe('formulas', () => {
  it.each([
    ['$x^2$, $n$th', '<p><math>x^2</math>, <math>n</math>th</p>'],
    ['\\(a * b * c\\) and **$d$**', '<p><math>a * b * c</math> and <strong><math>d</math></strong></p>'],
    ['so $$a$$ holds', '<p>so <math display>a</math> holds</p>'],
    ['\\[ a \\]', '<math display> a </math>'],
    ['Then\n$$\na\n- b\n\n> c\n$$\nthus', '<p>Then</p><math display>\na\n- b\n\n> c\n</math><p>thus</p>'],
    ['- a:\n  $$b$$', '<ul><li><p>a:</p><math display>b</math></li></ul>'],
  ])('%j', (text, html) => {
    expect(render(text)).toBe(html);
  });

  it.each([
    '$5 and $6',
    '$5-$6, US$5 or $5/$10',
    '$HOME:$PATH',
    'a $ b $ c',
    '`$x$`',
    '\\$x\\$',
    'unfinished $x + ',
    '$$ a',
    '\\[ a',
  ])('not %j', text => {
    expect(render(text)).not.toContain('<math');
    expect(render(text).replace(/<.*?>/g, '')).toBe(text.replaceAll('`', '').replaceAll('\\$', '$'));
  });
});

describe('highlighting', () => {
  const textOf = (node: unknown): string =>
    typeof node === 'object' && node !== null
      ? [(node as VNode<{ children?: unknown }>).props.children].flat().map(textOf).join('')
      : String(node ?? '');

  it('knows languages by the names that models give them', () => {
    expect(['ts', 'TSX', 'c++', 'py', 'html', 'sh', 'ts {1,2}', 'rust,ignore'].map(languageOf)).toEqual([
      'typescript',
      'typescript',
      'cpp',
      'python',
      'xml',
      'bash',
      'typescript',
      'rust',
    ]);
    expect(['', 'mermaid', 'constructor', '__proto__'].map(languageOf)).toEqual([
      undefined,
      undefined,
      undefined,
      undefined,
    ]);
  });

  it('colors code, also of a language in another', () => {
    const html = htmlOf(highlight('<script>const a = "b";</script>', 'xml'));
    expect(html).toContain('<span>const</span>');
  });

  it('keeps every character, whatever the code contains', () => {
    const languages = ['typescript', 'xml', 'python', 'css', 'sql', 'bash', 'json', 'yaml', 'rust', 'cpp'];
    const hostile = '<img src=x onerror=alert(1)>&amp;"\'`$a</span>\u0000\u2028';
    for (const language of languages) expect(textOf(highlight(hostile, language)), language).toBe(hostile);
    fc.assert(
      fc.property(fc.string(), fc.constantFrom(...languages), (code, language) => {
        expect(textOf(highlight(code, language))).toBe(code);
      }),
    );
  });

  it('has a contrast of at least 4.5 in light and dark', () => {
    const css = readFileSync(new URL('../../web/src/style/tokens.css', import.meta.url), 'utf8');
    const colors = [...css.matchAll(/--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)/g)];
    const luminance = (hex: string) => {
      const [red, green, blue] = [1, 3, 5].map(at => {
        const value = Number.parseInt(hex.slice(at, at + 2), 16) / 255;
        return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const contrast = (a: string, b: string) => {
      const [dark, light] = [luminance(a), luminance(b)].sort((a, b) => a - b);
      return (light + 0.05) / (dark + 0.05);
    };
    const panel = colors.find(([, name]) => name === 'panel')!;
    const shown = colors.filter(([, name]) => /^(code-|soft|danger$)/.test(name));
    expect(shown.length).toBe(7);
    for (const [, name, light, dark] of shown) {
      expect(contrast(light, panel[2]), `${name}, light`).toBeGreaterThanOrEqual(4.5);
      expect(contrast(dark, panel[3]), `${name}, dark`).toBeGreaterThanOrEqual(4.5);
    }
  });
});
