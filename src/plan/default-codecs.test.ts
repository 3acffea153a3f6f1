import { describe, expect, it } from 'vitest';
import { parseSpec } from '../codec/spec.ts';
import { missingCodecs, placeholderForAll } from './default-codecs.ts';

const SHAPE = { layers: 2, kvHeads: 2, headDim: 64 };
const missing = (spec: string, ...codecs: string[]) =>
  missingCodecs(placeholderForAll(codecs.map(parseSpec), SHAPE), parseSpec(spec), SHAPE);

describe('what to calibrate for', () => {
  it.each(['vec-d2b8', 'vec-d4b12', 'vec-d4b8', 'vec-d8b12', 'vec-d8b8', 'tq35-v', 'tq35-v'])(
    '%s, if it is missing',
    spec => {
      expect(missing(spec)).toBe(spec);
      expect(missing(`${spec}+recent128`)).toBe(spec);
      expect(missing(spec, spec)).toBeUndefined();
    },
  );

  it('is only the side that is missing', () => {
    expect(missing('vec-d8b12/vec-d4b8', 'vec-d4b8')).toBe('vec-d8b12/f16');
    expect(missing('vec-d8b12/vec-d4b8', 'vec-d8b12/f16')).toBe('f16/vec-d4b8');
    expect(missing('vec-d8b12', 'vec-d8b12/f16')).toBe('f16/vec-d8b12');
    expect(missing('vec-d8b12/vec-d4b8')).toBe('vec-d8b12/vec-d4b8');
  });

  it('does not include a side that needs no calibration', () => {
    expect(missing('vec-d4b8/tq4')).toBe('vec-d4b8/tq4');
    expect(missing('vec-d4b8/tq4', 'vec-d4b8/f16')).toBeUndefined();
    expect(missing('tq4/vec-d4b8', 'f16/vec-d4b8')).toBeUndefined();
    expect(missing('tri-i4/tq4')).toBeUndefined();
  });
});
