/** Names that are taken: codecs that learn from data. They parse, so that files and APIs may carry them already. */
import { UnsupportedError } from '../errors.ts';
import type { Family } from './family.ts';

function reserve(
  title: string,
  pattern: RegExp,
  bases: string[],
  variants: Family['variants'],
  instead: string,
): Family {
  const why = `${title} codecs need a calibrated profile, which this version cannot make yet`;
  return {
    title,
    pattern,
    bases,
    variants,
    reserved: why,
    create({ spec }) {
      throw new UnsupportedError(`${spec}: ${why}. Use ${instead}, which needs no data.`);
    },
  };
}

const BOOKS = [
  { name: 'own', about: 'a codebook a head and sub-vector instead of one for all' },
  { name: 'smooth', about: 'ablation: smoothing only' },
  { name: 'had', about: 'ablation: Hadamard only' },
];

export const reserved: readonly Family[] = [
  reserve('VecInfer', /^vec-d(\d+)b(\d+)$/, ['vec-d4b8', 'vec-d8b12', 'vec-d2b4', 'vec-d2b8'], BOOKS, 'tq2'),
  reserve('MILLION', /^million-d(\d+)b(\d+)$/, ['million-d4b8'], BOOKS.slice(0, 1), 'tq2'),
  reserve('Oaken', /^oaken$/, ['oaken'], [], 'tq4'),
  reserve('TriAttention', /^tri(\d+)i(4|8|16)$/, ['tri12i4', 'tri16i8', 'tri8i4'], [], 'tq2'),
];
