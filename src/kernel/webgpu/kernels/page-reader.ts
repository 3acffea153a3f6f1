/**
 * Generates WGSL that reads a page as floats, for the generic attention kernel: by eights, `NAME_eight(page, head, t, c)`
 * for eight dims of token t, or by fours, `NAME_four(page, head, i, g)` for dim i of tokens 4 g to 4 g + 3, whichever is
 * contiguous. Both must be multiplied by `NAME_scales(page, head, g)`, factors of four tokens. Encodings that only have
 * `NAME_single(page, head, t, i)`, one value, get `NAME_eight` or `NAME_four` from it.
 */

import type { PageLayout, ScalarArray } from '../../page-layout.ts';
import { gridBytes, readFour, readGrid } from './grid.ts';
import { oakenReader } from './oaken.ts';
import { blockOffset } from './pool-loads.ts';
import type { PageShape } from './shape.ts';
import { each, float } from './snippets.ts';
import { encodingTableOffset } from './tables.ts';

/** The order of dims in eights: which eight, and which half of it, holds dims 4 n to 4 n + 3; and the first dim of a half. */
export interface DimOrder {
  eight(n: string): string;
  half(n: string): string;
  first(c: string, half: number): string;
}

export const sequentialDims: DimOrder = {
  eight: n => `(${n}) / 2`,
  half: n => `(${n}) % 2`,
  first: (c, half) => `8 * (${c}) + ${4 * half}`,
};

export interface Reader {
  by: 'eight' | 'four';
  text: string;
  /** Statements that fill lookup tables in workgroup memory. */
  setup?: string;
  dimOrder?: DimOrder;
}

/** The codec's lookup tables are bound as `NAMETables`. */
export function pageReader(name: string, layout: PageLayout, shape: PageShape): Reader {
  const { headDim: D, kvHeads, pageTokens: P } = shape;
  const { encoding: kind, codedDim: C, sharedBytes, blockBytes } = layout;
  const block = `let block = ${blockOffset(layout, 'page')};`;
  const call = (id: string, parameters: string, type: string, body: string) =>
    `fn ${name}_${id}(page: u32, head: u32, ${parameters}) -> ${type} { ${block} ${body} }`;
  const single = (body: string) => call('single', 't: u32, i: u32', 'f32', body);
  const eight = (body: string) => call('eight', 't: u32, c: u32', 'Eight', body);
  const four = (body: string) => call('four', 'i: u32, g: u32', 'vec4f', body);
  const scales = (body = 'return vec4f(1.0);') => call('scales', 'g: u32', 'vec4f', body);
  const fourScalars = ({ offset, bytes }: ScalarArray, base = 'block') => {
    const at = (t: string) =>
      `${bytes === 2 ? 'read_f16' : 'read_f32'}(${base} + ${offset} + (4 * g + ${t}) * ${bytes})`;
    return `vec4f(${each(4, j => at(`${j}`), ', ')})`;
  };
  /** Reads eights or fours value by value. */
  const fromSingles = (by: 'eight' | 'four', text: string): Reader => {
    const value = (j: number) =>
      C % 8 === 0 ? `${name}_single(page, head, t, 8 * c + ${j})` : `${name}_padded(page, head, t, 8 * c + ${j})`;
    const padded = call(
      'padded',
      't: u32, i: u32',
      'f32',
      `if (i >= ${C}) { return 0.0; } return ${name}_single(page, head, t, i);`,
    );
    const body =
      by === 'eight'
        ? `${C % 8 === 0 ? '' : padded}
${eight(`return Eight(vec4f(${each(4, value, ', ')}), vec4f(${each(4, j => value(j + 4), ', ')}));`)}`
        : four(`return vec4f(${each(4, j => `${name}_single(page, head, 4 * g + ${j}, i)`, ', ')});`);
    return { by, text: `${text}\n${body}` };
  };
  const isAligned = [sharedBytes, blockBytes].every(n => n % 4 === 0);
  const grid = (id: string, codes: Parameters<typeof readGrid>[1]) => readGrid(`${name}_${id}`, codes);
  const fours = (id: string, codes: Parameters<typeof readGrid>[1]) =>
    isAligned ? readFour(`${name}_${id}`, codes) : undefined;
  /** A lookup table of levels in workgroup memory, with one copy per bank to avoid conflicts. */
  const table = (id: string, levels: Float32Array) => ({
    text: `var<workgroup> ${name}_${id}: array<f32, ${32 * levels.length}>;`,
    setup: `{ var levels = array<f32, ${levels.length}>(${[...levels].map(float).join()});
    for (var at = lane; at < ${32 * levels.length}; at += 128) { ${name}_${id}[at] = levels[at / 32]; } }`,
    at: (code: string) => `${name}_${id}[(${code}) * 32 + bank]`,
  });
  const tableOffset = encodingTableOffset(layout);
  const word = (at: string) => `${name}Tables[${tableOffset} + ${at}]`;

  switch (kind.kind) {
    case 'f16':
      if (D % 8 !== 0)
        return fromSingles('eight', `${single(`return read_f16(block + 2 * (t * ${D} + i));`)}\n${scales()}`);
      return {
        by: 'eight',
        text: `${eight(`return unpack_f16x8(pool4[(block + 2 * (t * ${D} + 8 * c)) / 16]);`)}\n${scales()}`,
      };
    case 'fp8':
      if (D % 8 !== 0)
        return fromSingles('eight', `${single(`return unpack_fp8(read_byte(block + t * ${D} + i)).x;`)}\n${scales()}`);
      return {
        by: 'eight',
        text: `${eight(`
  let at = (block + t * ${D} + 8 * c) / 4;
  return Eight(unpack_fp8(pool[at]), unpack_fp8(pool[at + 1]));`)}
${scales()}`,
      };
    case 'q8_0':
      return {
        by: 'eight',
        text: `${eight(`
  let at = block + (t * ${D / 32} + c / 4) * 34;
  let scale = read_f16(at);
  let first = at + 2 + 8 * (c % 4);
  return Eight(scale * vec4f(unpack4xI8(read_word(first))), scale * vec4f(unpack4xI8(read_word(first + 4))));`)}
${scales()}`,
      };
    case 'q4_0':
      return {
        by: 'eight',
        text: `${eight(`
  let at = block + (t * ${D / 32} + c / 4) * 18;
  let scale = read_f16(at);
  let codes = read_word(at + 2 + 4 * (c % 4));
  let low = vec4f(unpack4xU8(codes & 0x0f0f0f0f)) - 8.0;
  let high = vec4f(unpack4xU8((codes >> 4) & 0x0f0f0f0f)) - 8.0;
  return Eight(scale * low, scale * high);`)}
${scales()}`,
        // A byte holds two dims, 16 apart.
        dimOrder: {
          eight: n => `(${n}) / 8 * 4 + (${n}) % 4`,
          half: n => `((${n}) / 4) % 2`,
          first: (c, half) => `(${c}) / 4 * 32 + (${c}) % 4 * 4 + ${16 * half}`,
        },
      };
    case 'levels': {
      const codes = { ...kind.codes, tokens: P, dims: D };
      const signBit = 2 ** (kind.codes.bits - 1);
      const step = float(2 * kind.levels[0]);
      const levels = table('levels', kind.levels);
      const level = (code: string) =>
        kind.uniform ? `(f32(i32(${code} ^ ${signBit}) - ${signBit}) + 0.5) * ${step}` : levels.at(code);
      const vector = (v: string) => `vec4f(${each(4, j => level(`${v}[${j}]`), ', ')})`;
      const head = `${kind.uniform ? '' : levels.text}\n${scales(`return ${fourScalars(kind.norms)};`)}`;
      const more = kind.uniform ? {} : { setup: levels.setup };
      const fourReader = fours('codes', codes);
      if (kind.codes.order === 'rows') {
        if (!fourReader || D % 8 !== 0)
          return {
            ...fromSingles(
              'eight',
              `${head}\n${grid('codes', codes)}\n${single(`return ${level(`${name}_codes(block, t, i)`)};`)}`,
            ),
            ...more,
          };
        const body = `let low = ${name}_codes(block, t, 2 * c); let high = ${name}_codes(block, t, 2 * c + 1);
  return Eight(${vector('low')}, ${vector('high')});`;
        return { by: 'eight', text: `${head}\n${fourReader}\n${eight(body)}`, ...more };
      }
      if (!fourReader)
        return {
          ...fromSingles(
            'four',
            `${head}\n${grid('codes', codes)}\n${single(`return ${level(`${name}_codes(block, t, i)`)};`)}`,
          ),
          ...more,
        };
      return {
        by: 'four',
        text: `${head}\n${fourReader}\n${four(`let codes = ${name}_codes(block, i, g); return ${vector('codes')};`)}`,
        ...more,
      };
    }
    case 'hybrid': {
      const { parts, residual } = kind;
      const tables = parts.map(({ levels }, n) => table(`levels${n}`, levels));
      const shapes = parts.map(({ codes, firstDim, endDim }) => ({ ...codes, tokens: P, dims: endDim - firstDim }));
      const signs = residual && { ...residual.signs, tokens: P, dims: D };
      const fourReader = [...shapes.map((s, n) => fours(`part${n}`, s)), ...(signs ? [fours('signs', signs)] : [])];
      const all = fourReader.every(text => text !== undefined);
      const norms = (s: ScalarArray) => (all ? fourScalars(s) : scalarAt(s));
      const code = (id: string, i: string) => (all ? `${name}_${id}(block, ${i}, g)` : `${name}_${id}(block, t, ${i})`);
      const level = (n: number) =>
        all
          ? `let codes = ${code(`part${n}`, `i - ${parts[n].firstDim}`)}; return norm * vec4f(${each(4, j => tables[n].at(`codes[${j}]`), ', ')});`
          : `return norm * ${tables[n].at(code(`part${n}`, `i - ${parts[n].firstDim}`))};`;
      const body = `
  ${
    residual
      ? `if (i >= ${D}) {
    let size = ${float(residual.gain)} * ${norms(residual.norms)};
    return select(-size, size, ${code('signs', `i - ${D}`)} == ${all ? 'vec4u(1)' : '1'});
  }`
      : ''
  }
  let norm = ${norms(kind.norms)};
  if (i < ${parts[0].endDim}) { ${level(0)} }
  ${level(1)}`;
      const texts = [
        ...tables.map(({ text }) => text),
        ...(all
          ? fourReader
          : [...shapes.map((s, n) => grid(`part${n}`, s)), ...(signs ? [grid('signs', signs)] : [])]),
        scales(),
      ].join('\n');
      return {
        ...(all
          ? { by: 'four' as const, text: `${texts}\n${four(body)}` }
          : fromSingles('four', `${texts}\n${single(body)}`)),
        setup: tables.map(({ setup }) => setup).join('\n'),
      };
    }
    case 'affine': {
      const { groupSize, axis, norms } = kind;
      const shared = norms?.per === 'page' ? 'page' : 'block';
      const head = scales(norms && `return ${fourScalars(norms, shared)};`);
      const codes = { ...kind.codes, tokens: P, dims: D };
      const fourReader = kind.rangesOffset % 4 === 0 ? fours('codes', codes) : undefined;
      const rangeOf = (t: string, i: string) =>
        axis === 'channel'
          ? `(${t}) / ${groupSize} * ${D} + ${i}`
          : `(${t}) * ${D / groupSize} + (${i}) / ${groupSize}`;
      if (!fourReader || D % 8 !== 0) {
        const body = `
  let at = block + ${kind.rangesOffset} + 4 * (${rangeOf('t', 'i')});
  return fma(f32(${name}_codes(block, t, i)), read_f16(at + 2), read_f16(at));`;
        return fromSingles(
          kind.codes.order === 'rows' ? 'eight' : 'four',
          `${head}\n${grid('codes', codes)}\n${single(body)}`,
        );
      }
      const range = (at: string) => `unpack2x16float(pool[(block + ${kind.rangesOffset}) / 4 + ${at}])`;
      const spread = (codes: string, at: (j: number) => string) =>
        `vec4f(${each(4, j => `${name}_dequantize(f32(${codes}[${j}]), ${range(at(j))})`, ', ')})`;
      const dequantize = `fn ${name}_dequantize(code: f32, range: vec2f) -> f32 { return fma(code, range.y, range.x); }`;
      const vectors = [kind.rangesOffset, sharedBytes, blockBytes].every(n => n % 16 === 0);
      const ranges = (half: number) =>
        `pool4[(block + ${kind.rangesOffset}) / 16 + (t / ${groupSize} * ${D} + 8 * c) / 4 + ${half}]`;
      const fitted = (codes: string, ranges: string) =>
        `vec4f(${each(4, j => `${name}_dequantize(f32(${codes}[${j}]), unpack2x16float(${ranges}[${j}]))`, ', ')})`;
      const text =
        kind.codes.order === 'rows' && axis === 'channel' && vectors
          ? eight(`
  let low = ${name}_codes(block, t, 2 * c);
  let high = ${name}_codes(block, t, 2 * c + 1);
  let low_ranges = ${ranges(0)};
  let high_ranges = ${ranges(1)};
  return Eight(${fitted('low', 'low_ranges')}, ${fitted('high', 'high_ranges')});`)
          : kind.codes.order === 'rows'
            ? eight(`
  let low = ${name}_codes(block, t, 2 * c);
  let high = ${name}_codes(block, t, 2 * c + 1);
  return Eight(${spread('low', j => rangeOf('t', `8 * c + ${j}`))}, ${spread('high', j => rangeOf('t', `8 * c + ${4 + j}`))});`)
            : four(`
  let codes = ${name}_codes(block, i, g);
  return ${spread('codes', j => rangeOf(`4 * g + ${j}`, 'i'))};`);
      return {
        by: kind.codes.order === 'rows' ? 'eight' : 'four',
        text: [head, fourReader, dequantize, text].join('\n'),
      };
    }
    case 'additive': {
      const starts = kvHeads * (D / 4) + 1;
      const codes = { offset: 0, bits: 4, order: 'columns', tokens: P, dims: 1 } as const;
      return {
        by: 'four',
        text: [
          readFour(`${name}_codes`, codes) ??
            fourFromSingles(`${name}_codes`, grid('codes_at', codes), `${name}_codes_at`),
          four(`
  let quad = head * ${D / 4} + i / 4;
  var sum = vec4f(0.0);
  for (var column = ${word('quad')}; column < ${word('quad + 1')}; column++) {
    let codes = ${starts} + column * 64 + 4 * ${name}_codes(page + column * ${gridBytes(codes)}, 0, g) + i % 4;
    sum += bitcast<vec4f>(vec4u(${each(4, j => word(`codes[${j}]`), ', ')}));
  }
  return sum;`),
          scales(),
        ].join('\n'),
      };
    }
    case 'mixed': {
      const columns = kvHeads * D;
      const widths = [4, 2, 1];
      const planes = widths.map(width => {
        const plane = { offset: 0, bits: width, order: 'columns', tokens: P, dims: 1 } as const;
        const id = `${name}_plane${width}`;
        return readFour(id, plane) ?? fourFromSingles(id, readGrid(`${id}_at`, plane), `${id}_at`);
      });
      const plane = (width: number) => `
  if ((bits & ${width}) != 0) {
    code |= ${name}_plane${width}(at, 0, g) << vec4u(shift);
    shift += ${width};
    at += ${Math.ceil((P * width) / 8)};
  }`;
      return {
        by: 'four',
        text: [
          ...planes,
          four(`
  let column = ${word(`head * ${D} + i`)};
  let bits = column & 7;
  if (bits == 0) { return vec4f(0.0); }
  var at = page + column / 8;
  var code = vec4u(0);
  var shift = 0u;
  ${widths.map(plane).join('')}
  let sign_bit = 1u << (bits - 1);
  let signed = vec4f(vec4i(code ^ vec4u(sign_bit)) - i32(sign_bit));
  return (signed + 0.5) * bitcast<f32>(${word(`${columns + 1} + head * ${D} + i`)});`),
          scales(),
        ].join('\n'),
      };
    }
    case 'book': {
      const { subvectorDims, bookPerSubvector: perSubvector } = kind;
      const subs = D / subvectorDims;
      const codes = { ...kind.codes, tokens: P, dims: subs };
      const entry = (code: string) =>
        `bitcast<f32>(${word(`(${perSubvector ? `(head * ${subs} + i / ${subvectorDims}) * ${2 ** kind.codes.bits} + ` : ''}${code}) * ${subvectorDims} + i % ${subvectorDims}`)})`;
      const fourReader = fours('codes', codes);
      if (!fourReader)
        return fromSingles(
          'four',
          `${grid('codes', codes)}\n${single(`return ${entry(`${name}_codes(block, t, i / ${subvectorDims})`)};`)}\n${scales()}`,
        );
      return {
        by: 'four',
        text: `${fourReader}
${four(`let codes = ${name}_codes(block, i / ${subvectorDims}, g); return vec4f(${each(4, j => entry(`codes[${j}]`), ', ')});`)}
${scales()}`,
      };
    }
    case 'oaken':
      return fromSingles(
        kind.codes.order === 'rows' ? 'eight' : 'four',
        [grid('codes', { ...kind.codes, tokens: P, dims: D }), oakenReader(name, kind, shape, single), scales()].join(
          '\n',
        ),
      );
    case 'spectrum': {
      const { keptPairs, cosines, sines } = kind;
      const maxCode = 2 ** (cosines.bits - 1) - 1;
      const signed = (id: string) =>
        `f32(i32(${name}_${id}(block, t, slot) << ${32 - cosines.bits}) >> ${32 - cosines.bits})`;
      return fromSingles(
        'four',
        [
          grid('pairs', { offset: kind.pairsOffset, bits: 8, order: 'columns', tokens: P, dims: keptPairs }),
          grid('cosines', { ...cosines, tokens: P, dims: keptPairs }),
          grid('sines', { ...sines, tokens: P, dims: keptPairs }),
          single(`
  for (var slot = 0u; slot < ${keptPairs}; slot++) {
    if (${name}_pairs(block, t, slot) != i / 2) { continue; }
    let at = 2 * (t * ${D / 2} + i / 2);
    let rotation = vec2f(bitcast<f32>(${word('at')}), bitcast<f32>(${word('at + 1')}));
    let both = vec2f(${signed('cosines')}, ${signed('sines')});
    return select(both.x * rotation.x - both.y * rotation.y, both.x * rotation.y + both.y * rotation.x, i % 2 == 1);
  }
  return 0.0;`),
          scales(`return ${fourScalars(kind.scales)} / ${float(maxCode)};`),
        ].join('\n'),
      );
    }
  }
}

const scalarAt = ({ offset, bytes }: ScalarArray) =>
  `${bytes === 2 ? 'read_f16' : 'read_f32'}(block + ${offset} + t * ${bytes})`;

/** Reads four codes one by one. */
const fourFromSingles = (name: string, text: string, single: string) => `${text}
fn ${name}(block: u32, line: u32, n: u32) -> vec4u {
  return vec4u(${each(4, j => `${single}(block, 4 * n + ${j}, line)`, ', ')});
}`;
