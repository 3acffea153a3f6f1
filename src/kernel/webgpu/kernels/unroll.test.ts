import { expect, it } from 'vitest';
import { unroll } from './unroll.ts';

/** Without line breaks, and with single spaces. */
const flat = (text: string) => unroll(text).replaceAll(/\s+/g, ' ').trim();

it.each([
  [
    'a statement',
    '@unroll(j, 3) let x$j = f($(8 * j)u, y);',
    'let x0 = f(0u, y); let x1 = f(8u, y); let x2 = f(16u, y);',
  ],
  [
    'a block, without its braces',
    '@unroll(j, 2) { let a$j = 1; b($j); } c();',
    'let a0 = 1; b(0); let a1 = 1; b(1); c();',
  ],
  ['a block with a scope', '@unroll(j, 2) {{ let a = $j; }}', '{ let a = 0; } { let a = 1; }'],
  [
    'a compound statement',
    '@unroll(j, 2) if (a[$j] > 0) { b(); } else { c(); } d();',
    'if (a[0] > 0) { b(); } else { c(); } if (a[1] > 0) { b(); } else { c(); } d();',
  ],
  [
    'a loop of the kernel',
    '@unroll(j, 2) for (var i = 0; i < 4; i++) { a$j += i; }',
    'for (var i = 0; i < 4; i++) { a0 += i; } for (var i = 0; i < 4; i++) { a1 += i; }',
  ],
  [
    'loops in loops',
    '@unroll(s, 2) @unroll(j, 2) d$s_$j += e$(2 * s + j);',
    'd0_0 += e0; d0_1 += e1; d1_0 += e2; d1_1 += e3;',
  ],
  [
    'words',
    '@unroll(s in [key, value]) let $s_page = $s_start;',
    'let key_page = key_start; let value_page = value_start;',
  ],
  [
    'words that are computed',
    '@unroll(v, 2) f(@list(q in [$(4 * v), $(min(4 * v + 1, 4))], w$q));',
    'f(w0, w1); f(w4, w4);',
  ],
  [
    'a list',
    'vec4f(@list(k, 4, dot(y$k, w[$k])))',
    'vec4f(dot(y0, w[0]), dot(y1, w[1]), dot(y2, w[2]), dot(y3, w[3]))',
  ],
  ['a sum', '(@sum(k, 3, x$k))', '(x0 + x1 + x2)'],
  [
    'components of vectors',
    '@unroll(q, 6) top$[q] = x;',
    'top0[0] = x; top0[1] = x; top0[2] = x; top0[3] = x; top1[0] = x; top1[1] = x;',
  ],
  [
    'an inner index of the same name',
    '@unroll(j, 2) { a$j = f(@list(j, 2, b$j)); }',
    'a0 = f(b0, b1); a1 = f(b0, b1);',
  ],
  ['integer arithmetic', '@unroll(i, 1) x = $((i + 7) / 2 * 3 % 5 - 1 - 2);', 'x = 1;'],
  ['comments with brackets', '@unroll(i, 1) { // a) and ;\n x = $i; }', '// a) and ; x = 0;'],
  ['no rounds', 'a; @unroll(i, 0) b$i; c;', 'a; c;'],
  ['plain text', 'let x = y[0]; // 2 $', 'let x = y[0]; // 2 $'],
])('unrolls %s', (_, text, expected) => {
  expect(flat(text)).toBe(expected);
});

it.each([
  ['an unknown index', 'x$j;'],
  ['an unknown index in arithmetic', '@unroll(i, 2) x$(i + j);'],
  ['a loop without a count', '@unroll(i) x;'],
  ['a statement without an end', '@unroll(i, 2) x'],
  ['an open bracket', '@unroll(i, 2) { x;'],
  ['half an expression', '@unroll(i, 2) x$(2 *);'],
])('rejects %s', (_, text) => {
  expect(() => unroll(text)).toThrow();
});
