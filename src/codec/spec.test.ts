import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { SpecError, UnsupportedError } from '../util/errors.ts';
import { createCodec } from './kv.ts';
import { formatSpec, parseSpec } from './spec.ts';
import { families } from './zoo.ts';

const roundTrip = (text: string) => formatSpec(parseSpec(text));

describe('a canonical spec round-trips', () => {
  it.each([
    'tq4',
    'tq4/tq3',
    'tq4u',
    'kivi2g32',
    'oscar2g32',
    'tq35',
    'tq25',
    'f16',
    'fp8',
    'q8_0',
    'q4_0',
    'q4_0h',
    'mead2',
    'mead1.5',
    'vec-d4b8/vec-d8b12',
    'vec-d4b8-own',
    'million-d4b8',
    'oaken',
    'tri12i4/tq2',
    'tq4-raw',
    'tq4-n32-haar-seed7',
    'tq4-r3',
    'tq35-noqjl',
    'kivi2g32-token/kivi2g32-channel',
    'oscar2g32-rot',
    'oscar2g32-scale-xh',
    'tq4+sink4+recent128+edge2',
    'tq4/tq3-raw+sink0',
  ])('%s', text => expect(roundTrip(text)).toBe(text));

  it('for any combination of family, variants and windows', () => {
    const side = fc.constantFrom(...families).chain(family =>
      fc.tuple(
        fc.constantFrom(...family.bases),
        fc.subarray(family.variants.filter(({ side }) => side === undefined)).map(chosen => {
          const names = chosen.map(({ name }) => name);
          const excluded = (family.conflicts ?? []).filter(pair => pair.every(name => names.includes(name)));
          return names.filter(name => !excluded.some(([, second]) => second === name)).map(n => n.replace('#', '5'));
        }),
      ),
    );
    const text = side.map(([base, variants]) => [base, ...variants].join('-'));
    const windows = fc.subarray(['+sink8', '+recent64', '+edge1']).map(list => list.join(''));
    fc.assert(
      fc.property(text, text, windows, (key, value, window) => {
        const written = (key === value ? key : `${key}/${value}`) + window;
        expect(roundTrip(written)).toBe(written);
      }),
    );
  });
});

describe('equivalent specs have one canonical form', () => {
  it.each([
    ['tq4/tq4', 'tq4'],
    ['tq4-haar-n32', 'tq4-n32-haar'],
    ['q4_0-raw/q4_0', 'q4_0-raw'],
    ['tq4-r03', 'tq4-r3'],
    ['tq4+edge2+sink4', 'tq4+sink4+edge2'],
  ])('%s is %s', (text, canonical) => expect(roundTrip(text)).toBe(canonical));
});

describe('an invalid spec is an error that says what is valid', () => {
  it.each([
    ['tq5', /Nearest: tq4/],
    ['turbo4', /Nearest: .*tq4/],
    ['TQ4', /Nearest: tq4,/],
    ['kivi3g32', /kivi2g32/],
    ['kivi2', /kivi2g32/],
    ['oscar2', /oscar2g32/],
    ['q4_1', /Nearest: q4_0/],
    ['', /Nearest/],
    ['tq4/tq9', /for the values in "tq4\/tq9".*Nearest/],
    ['tq4/tq3/tq2', /keys\/values/],
    ['tq4-x', /no variant "-x".*-raw \(as published/],
    ['f16-raw', /no variant/],
    ['tq4-n32-n32', /twice/],
    ['tq4-haar-r3', /exclude each other/],
    ['oscar2g32-rot-scale', /exclude each other/],
    ['q4_0/q4_0-raw', /keys only/],
    ['tq4+sinks4', /\+sink4, \+recent128 or \+edge2/],
    ['tq4+sink', /not a window/],
    ['tq4+sink4+sink8', /twice/],
    ['tq4+recent9999999', /above the maximum of 1048576/],
    ['x'.repeat(100_000), /Nearest/],
  ])('%s', (text, message) => {
    expect(() => parseSpec(text)).toThrow(SpecError);
    expect(() => parseSpec(text)).toThrow(message);
  });

  it('any text parses or throws a SpecError', () => {
    const alphabet = fc.constantFrom(...'tqkivioscarfp0123456789-/+_.ug#()[]*\\ \u0000é');
    fc.assert(
      fc.property(fc.string({ unit: alphabet, maxLength: 24 }), text => {
        try {
          expect(roundTrip(roundTrip(text))).toBe(roundTrip(text));
        } catch (error) {
          expect(error).toBeInstanceOf(SpecError);
        }
      }),
      { numRuns: 2000 },
    );
  });
});

it.each(['mead2', 'vec-d4b8', 'oaken'])('%s without learned data says how to get it', spec => {
  expect(() => createCodec(spec, { headDim: 64 })).toThrow(UnsupportedError);
  expect(() => createCodec(spec, { headDim: 64 })).toThrow(/is missing.*kvasir calibrate.*`learn`/);
});
