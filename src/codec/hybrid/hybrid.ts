/**
 * Hybrid TurboQuant: tq35 and tq25. The first half of the rotated dims has 3 bits (tq25: 2), the other half 2 bits (1),
 * and every dim has one QJL sign bit of the residual. With `-v`, the finer half is chosen by calibration instead
 * (sorted-halves.ts).
 *
 * The sign bit makes inner products unbiased but adds variance. At equal size, a larger codebook has a lower error
 * (`kvasir codecs tq35 tq35-noqjl tq25`), so these codecs are never the default.
 */
import type { ScalarArray } from '../../kernel/page-layout.ts';
import { centerKeys, isCentered, RAW } from '../centered.ts';
import type { Shape } from '../codec.ts';
import { rotatedDomain, withQjlResidual } from '../domain.ts';
import { type Family, SEED } from '../family.ts';
import { centerByPage, requireLearned } from '../learned.ts';
import { createGrid, type Grid } from '../pack.ts';
import { type PageFormat, pageCodec } from '../page-codec.ts';
import { type Field, layoutFields } from '../page-fields.ts';
import { createQjl, type Qjl } from '../parts/qjl.ts';
import { norm } from '../parts/vector.ts';
import { f16, f32, type Scalars } from '../scalars.ts';
import { innerProductBounds, mseBounds } from '../turbo/bounds.ts';
import { createRotation, quantizerLevels, tableQuantizer } from '../turbo/turbo.ts';
import { type LevelScales, levelScales, sortedHalvesDomain, variancePerDim } from './sorted-halves.ts';

const BUDGET: Record<string, number> = { tq35: 0.0445, tq25: 0.141, 'tq35-noqjl': 0.078, 'tq25-noqjl': 0.245 };

export const hybrid: Family = {
  title: 'TurboQuant hybrid',
  pattern: /^tq([23])5$/,
  bases: ['tq35', 'tq25'],
  variants: [
    RAW,
    { name: 'v', about: 'the finer half is chosen by calibrated variance; needs a profile' },
    { name: 'noqjl', about: 'without the sign bits of the residual: one bit per value less' },
    { name: 'n32', about: 'norms in f32 instead of f16' },
    SEED,
  ],
  needsLearned: variants => variants.includes('v'),
  learn(request) {
    const { shape, samples } = request;
    if (!request.has('v')) return {};
    const vectors = isCentered(request) ? centerByPage(samples, shape) : samples.vectors;
    return { variance: variancePerDim(vectors, samples.count, shape) };
  },
  create(request) {
    const { spec, match, shape } = request;
    const bits = Number(match[1]);
    const seed = request.numberOf('seed#', 0);
    const qjl = request.has('noqjl') ? undefined : createQjl(shape.headDim, seed + 0x514a4c);
    const variance = request.has('v') ? requireLearned(request, 'variance', shape.kvHeads * shape.headDim) : undefined;
    const domain = variance
      ? sortedHalvesDomain(request, variance)
      : rotatedDomain(shape.headDim, createRotation(request, shape.headDim));
    const scales = variance ? levelScales(variance, shape) : ([1, 1] as const);
    const format = hybridFormat(bits, shape, scales, qjl, request.has('n32') ? f32 : f16);
    return pageCodec({
      spec,
      shape,
      budget: BUDGET[`tq${bits}5${qjl ? '' : '-noqjl'}`],
      bounds:
        variance || isCentered(request)
          ? undefined
          : qjl
            ? innerProductBounds(bits + 1, bits)
            : mseBounds(bits, bits - 1),
      isIdempotent: false,
      domain: qjl ? withQjlResidual(domain, qjl) : domain,
      format: centerKeys(request, format),
    });
  },
};

/**
 * One head's block, all codes in columns (see pack.ts):
 *   fine      the first headDim / 2 rotated dims, 3 bits (tq35) or 2 (tq25), index into the Lloyd-Max table; with `-v` the
 *             tables are scaled
 *   coarse    the other dims, one bit less each
 *   signs     1 bit per dim: 1 if the projection of the residual is >= 0
 *   norms     pageTokens scalars, |x|
 *   residual  pageTokens scalars, |residual| at the scale of x
 */
function hybridFormat(
  bits: number,
  { headDim, kvHeads, pageTokens }: Shape,
  scales: LevelScales,
  qjl: Qjl | undefined,
  scalars: Scalars,
): PageFormat {
  const half = Math.floor(headDim / 2);
  const columnGrid = (dims: number, bits: number) => createGrid(pageTokens, dims, bits, 'columns');
  const signs = columnGrid(headDim, 1);
  const parts = [
    {
      name: 'fine',
      firstDim: 0,
      endDim: half,
      grid: columnGrid(half, bits),
      quantizer: tableQuantizer(bits, headDim, scales[0]),
    },
    {
      name: 'coarse',
      firstDim: half,
      endDim: headDim,
      grid: columnGrid(headDim - half, bits - 1),
      quantizer: tableQuantizer(bits - 1, headDim, scales[1]),
    },
  ];
  const codes = (name: string, grid: Grid, firstDim: number, endDim: number): Field => ({
    name,
    bytes: grid.bytes,
    per: 'head',
    about: `rotated dims ${firstDim} to ${endDim - 1} x ${pageTokens} codes of ${grid.bits} bits in columns`,
  });
  const scalarField = (name: string, what: string): Field => ({
    name,
    bytes: pageTokens * scalars.bytes,
    per: 'head',
    about: `${pageTokens} x ${scalars.name}, ${what}`,
  });
  const fields = parts.map(({ name, grid, firstDim, endDim }) => codes(name, grid, firstDim, endDim));
  if (qjl) fields.push(codes('signs', signs, 0, headDim));
  fields.push(scalarField('norms', '|x|'));
  if (qjl) fields.push(scalarField('residual', '|residual|'));
  const layout = layoutFields(fields, kvHeads);

  const norms = (name: string): ScalarArray => ({ offset: layout.offset(name), bytes: scalars.bytes });
  return {
    fields,
    encoding: {
      kind: 'hybrid',
      parts: parts.map(({ name, firstDim, endDim, grid, quantizer }) => ({
        codes: { offset: layout.offset(name), bits: grid.bits, order: grid.order },
        firstDim,
        endDim,
        levels: quantizerLevels(quantizer, grid.bits),
      })),
      norms: norms('norms'),
      residual: qjl && {
        signs: { offset: layout.offset('signs'), bits: 1, order: 'columns' },
        norms: norms('residual'),
        gain: qjl.gain,
        matrix: qjl.matrix,
      },
    },
    write(heads, tokens, page) {
      heads.forEach((vectors, head) => {
        for (let t = 0; t < tokens; t++) {
          const x = vectors.subarray(t * headDim, (t + 1) * headDim);
          const length = norm(x);
          const residual = new Float64Array(headDim);
          for (const { name, firstDim, endDim, grid, quantizer } of parts) {
            const bytes = layout.field(page, name, head);
            for (let i = firstDim; i < endDim; i++) {
              const y = length > 0 ? x[i] / length : 0;
              const code = quantizer.encode(y);
              residual[i] = length * (y - quantizer.decode(code));
              grid.write(bytes, t, i - firstDim, code);
            }
          }
          scalars.write(layout.field(page, 'norms', head), t, length);
          if (!qjl) continue;
          scalars.write(layout.field(page, 'residual', head), t, norm(residual));
          qjl.project(residual);
          const bytes = layout.field(page, 'signs', head);
          for (let i = 0; i < headDim; i++) signs.write(bytes, t, i, residual[i] >= 0 ? 1 : 0);
        }
      });
    },
    read(page, head, token, out) {
      const length = scalars.read(layout.field(page, 'norms', head), token);
      for (const { name, firstDim, endDim, grid, quantizer } of parts) {
        const bytes = layout.field(page, name, head);
        for (let i = firstDim; i < endDim; i++)
          out[i] = length * quantizer.decode(grid.read(bytes, token, i - firstDim));
      }
      if (!qjl) return;
      const magnitude = qjl.gain * scalars.read(layout.field(page, 'residual', head), token);
      const bytes = layout.field(page, 'signs', head);
      for (let i = 0; i < headDim; i++) out[headDim + i] = signs.read(bytes, token, i) ? magnitude : -magnitude;
    },
  };
}
