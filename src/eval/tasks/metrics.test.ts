import { describe, expect, it } from 'vitest';
import { boxedAnswer, isSameMath } from './math-answer.ts';
import { bestScore, commonSubsequence, type MetricName, metricNames, numbersIn } from './metrics.ts';

const CASES: [metric: MetricName, said: string, answer: string, score: number][] = [
  ['exact', 'The  Mead!', 'mead', 1],
  ['exact', 'mead of poetry', 'mead', 0],
  ['contains', 'It was the mead of poetry.', 'Mead of Poetry', 1],
  ['contains', 'meadow', 'mead', 0],
  ['number', 'So 3 + 4 = 7', '7', 1],
  ['number', 'It costs $1,234.50.', '1234.5', 1],
  ['number', 'no idea', '7', 0],
  ['math', '\\dfrac{1}{2}', '0.5', 1],
  ['math', '(1, 2)', '(1,2)', 1],
  ['math', '3', '4', 0],
  // 2 of 3 words are shared: precision 2/2, recall 2/3.
  ['f1', 'red mill', 'the old red mill', 0.8],
  ['f1', 'mill mill', 'mill', 2 / 3],
  ['f1', '', 'mill', 0],
  ['f1', '北京市', '北京', 0.8],
  ['rouge-l', 'a b c d', 'a c b d', 0.75],
  ['rouge-l', 'x', 'y', 0],
  // As in the package rouge.
  ['rouge-l', 'the mill', 'The mill', 0.5],
  ['rouge-l', 'the the the', 'the mill', 2 / 3],
  ['rouge-l', 'The mill is old. Ada owns the mill.', 'Ada owns the old mill. It is red.', 2 / 3],
  ['rouge-l', 'w1 w2 w6 w7 w8. w1 w3 w8 w9 w5', 'w1 w2 w3 w4 w5', 8 / 13],
  ['rouge-l', 'The miller slept, and nobody came.', 'Nobody came and the miller slept. ', 2 / 13],
  ['rouge-l', '', 'x', 0],
  ['edit', 'return x', 'return x', 1],
  ['edit', 'abcd', 'abxd', 0.75],
  ['edit', '', '', 1],
  ['count', '7', '7', 1],
  ['count', 'between 7 and 9', '7', 0.5],
  ['count', 'none', '7', 0],
  ['retrieval', 'Paragraph 12', 'Paragraph 12', 1],
  ['retrieval', 'Paragraph 1', 'Paragraph 12', 0],
];

describe('metrics', () => {
  it.each(CASES)('%s of "%s" against "%s"', (metric, said, answer, score) =>
    expect(bestScore(metric, said, [answer])).toBeCloseTo(score, 10),
  );

  it('classify by the named classes, and share the point among several', () => {
    const classes = ['Food', 'Animal', 'Food group'];
    const score = (said: string, answer: string) => bestScore('classification', said, [answer], classes);
    expect(score('Animal', 'Animal')).toBe(1);
    expect(score('Animal or Food', 'Animal')).toBe(0.5);
    // "Food" is a part of the right name.
    expect(score('Food group', 'Food group')).toBe(1);
    expect(score('Animal', 'Food')).toBe(0);
  });

  it('take the best of several right answers', () => expect(bestScore('f1', 'Odin', ['Thor', 'Odin'])).toBe(1));

  it('have a case each', () =>
    expect(new Set([...CASES.map(([metric]) => metric), 'classification'])).toEqual(new Set(metricNames)));

  it('find numbers with signs, fractions and separators', () =>
    expect(numbersIn('-3 apples, 1,234,567 pears, 2.50 each, v1.2x; 12,34')).toEqual([-3, 1234567, 2.5, 12, 34]));

  it('compare subsequences', () => expect(commonSubsequence([...'abcbdab'], [...'bdcaba'])).toBe(4));
});

describe('answers of mathematics', () => {
  it('are the last boxed ones, with balanced braces', () => {
    expect(boxedAnswer('\\boxed{1} and \\boxed{\\frac{1}{2}}.')).toBe('\\frac{1}{2}');
    expect(boxedAnswer('\\boxed{1')).toBeUndefined();
    expect(boxedAnswer('none')).toBeUndefined();
  });

  it.each([
    ['\\frac12', '\\frac{1}{2}'],
    ['\\tfrac{3}{4}', '3/4'],
    ['-\\frac{1}{2}', '-0.5'],
    ['1,234', '1234'],
    ['\\left( 1, 2 \\right)', '(1,2)'],
    ['90^\\circ', '90'],
    ['50\\%', '50'],
    ['x = 5', '5'],
    ['\\text{(B)}', '(B)'],
    ['\\sqrt2', '\\sqrt{2}'],
    ['$12$', '12'],
    ['7.0', '7'],
    ['10\\text{ cm}', '10'],
    ['10 \\text{ cm}^2.', '10'],
    ['\\frac{1}{2}\\,\\mathrm{kg}', '.5'],
    ['1{,}000', '1000'],
    ['(C)', 'C'],
    ['\\text{(C)}', 'C'],
    ['2\\frac{1}{2}', '2.5'],
    ['-2\\frac12', '-2.5'],
    ['10^{-3}', '.001'],
    ['1.5\\times 10^4', '15000'],
    ['\\frac32\\pi', '\\frac{3\\pi}{2}'],
    ['\\frac{\\sqrt{3}}{3}', '\\frac{1}{\\sqrt3}'],
    ['2(3 + 4)', '14'],
  ])('%s is %s', (said, answer) => expect(isSameMath(said, answer)).toBe(true));

  it.each([
    ['', ''],
    ['1/0', '2'],
    ['\\sqrt{2}', '1.41'],
    ['x', 'y'],
    ['\\text{10 cm}', '11'],
    ['2\\frac{\\pi}{2}', '2+\\frac{\\pi}{2}'],
    ['10^{-3}', '10^{-4}'],
    ['1,2', '12'],
    ['2x', '2'],
    ['(1', '1'],
    ['5)', '5'],
    ['3\\text{ and }4', '3'],
  ])('%s is not %s', (said, answer) => expect(isSameMath(said, answer)).toBe(false));
});
