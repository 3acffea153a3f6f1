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

export const reserved: readonly Family[] = [
  reserve('mead', /^mead(\d(?:\.5)?)(u?)$/, ['mead1.5', 'mead2', 'mead2.5', 'mead3', 'mead2u'], [], 'tq2'),
];
