import { expect, it } from 'vitest';
import { writeGguf } from '../../test/support/gguf-writer.ts';
import { tinyModel } from '../../test/support/tiny-model.ts';
import { parseSpec } from '../codec/spec.ts';
import { type Engine, loadEngine, openModelFile } from '../engine/engine.ts';
import { logSoftmax } from '../engine/log-probs.ts';
import { step } from '../engine/step.ts';
import { createPlan } from '../plan/plan.ts';
import { InputError } from '../util/errors.ts';
import { createScore, type DivergenceRow, measureDivergence, SCORED_PER_BLOCK } from './divergence.ts';
import { divergencePlot } from './plot.ts';

const pageTokens = 16;
const context = 48;
const ids = Array.from({ length: 200 }, (_, i) => (i * i * 7 + 31 * i) % 256);

async function open(prefillChunk = 20): Promise<Engine> {
  const file = await openModelFile(new Blob([writeGguf(tinyModel({ tied: false }))]));
  const plan = createPlan(parseSpec('f16'), { ...file.config, pageTokens });
  return loadEngine(file, { plan, context }, { device: 'js', prefillChunk });
}

const plansOf = ({ config }: Engine, ...specs: string[]) =>
  specs.map(spec => createPlan(parseSpec(spec), { ...config, pageTokens }));

/** Logits of all positions of a row under a spec, in one chunk. */
async function logitsOf(engine: Engine, spec: string, row: number[]): Promise<Float32Array[]> {
  const sequence = engine.openSequence(createPlan(parseSpec(spec), { ...engine.config, pageTokens }), row.length);
  const rows: Float32Array[] = [];
  await step(engine, [{ sequence, tokens: row, logits: 'all' }], {
    onLogits: (_chunk, _row, logits) => rows.push(logits),
  });
  return rows;
}

it('equals its definition; f16 has no divergence from itself', async () => {
  const engine = await open();
  const specs = ['tq2', 'tq4+recent16'];
  const rows = await measureDivergence(engine, ids, {
    plans: plansOf(engine, ...specs),
    context,
    skipRows: 1,
    rows: 2,
  });
  expect(rows.map(({ kv }) => kv)).toEqual(['f16', ...specs]);
  expect(rows[0]).toMatchObject({ bits: 16, kld: 0, top1: 1, tokens: 2 * 23 });
  expect(rows[2].window).toEqual({ sink: 16, recent: 16, edge: 0 });

  const softmax = (logits: Float32Array) => {
    const weights = Array.from(logits, Math.exp);
    const sum = weights.reduce((a, b) => a + b);
    return weights.map(w => w / sum);
  };
  const argmax = (list: number[]) => list.indexOf(Math.max(...list));
  for (const { kv, kld, top1, perplexity } of rows) {
    let [sum, same, nll, n] = [0, 0, 0, 0];
    for (const start of [48, 96]) {
      const row = ids.slice(start, start + 48);
      const [exact, coded] = [await logitsOf(engine, 'f16', row), await logitsOf(engine, kv, row)];
      for (let t = 24; t < 47; t++, n++) {
        const [p, q] = [softmax(exact[t]), softmax(coded[t])];
        sum += p.reduce((total, x, i) => total + x * Math.log(x / q[i]), 0);
        same += Number(argmax(p) === argmax(q));
        nll -= Math.log(q[row[t + 1]]);
      }
    }
    expect(kld).toBeCloseTo(sum / n, 5);
    expect(top1).toBe(same / n);
    expect(perplexity / Math.exp(nll / n)).toBeCloseTo(1, 5);
  }
  expect(rows[1].kld).toBeGreaterThan(rows[2].kld);
  expect(engine.device.allocatedBytes).toBeGreaterThan(0);
});

it('is almost zero if all tokens are in the f16 window, and does not depend on the batch size', async () => {
  const engine = await open();
  const plans = plansOf(engine, 'tq2+recent64');
  const [near] = (await measureDivergence(engine, ids, { plans, context, rows: 1 })).slice(1);
  // Not quite zero: f16 pages are summed page by page, the f16 window as one.
  expect(Math.abs(near.kld)).toBeLessThan(1e-7);
  expect(near.top1).toBe(1);
  const [a, b] = [await open(5), await open(64)];
  const options = { plans: plansOf(a, 'tq2'), context, rows: 1, from: 40 };
  expect(await measureDivergence(a, ids, options)).toEqual(await measureDivergence(b, ids, options));
});

it('returns what was measured when it is aborted, for all caches on the same tokens', async () => {
  const stop = new AbortController();
  const engine = await open();
  const seen: number[] = [];
  const rows = await measureDivergence(engine, ids, {
    plans: plansOf(engine, 'tq4', 'tq2'),
    context,
    signal: stop.signal,
    onProgress({ done, total }) {
      seen.push(done / total);
      if (12 * done >= 5 * total) stop.abort();
    },
  });
  expect(rows.map(({ kv, tokens }) => [kv, tokens])).toEqual([
    ['f16', 23],
    ['tq4', 23],
    ['tq2', 23],
  ]);
  expect(seen).toEqual([...seen].sort((a, b) => a - b));
  expect(seen.at(-1)).toBeLessThan(0.5);
});

it('scores rows longer than a block, and frees its sequences', async () => {
  const engine = await open(64);
  const before = engine.device.allocatedBytes;
  const options = { plans: plansOf(engine, 'tq2'), context: SCORED_PER_BLOCK + 30, from: 20 };
  const long = Array.from({ length: options.context }, (_, i) => (i * i * 5 + 17 * i) % 256);
  const [, measured] = await measureDivergence(engine, long, options);
  expect(engine.device.allocatedBytes).toBe(before);
  const [exact, coded] = [await logitsOf(engine, 'f16', long), await logitsOf(engine, 'tq2', long)];
  const score = createScore(long);
  for (let t = 20; t < long.length - 1; t++) score.add(t, logSoftmax(coded[t]), logSoftmax(exact[t]));
  expect(measured.tokens).toBe(score.tokens);
  expect(measured.kld / (score.kld / score.tokens)).toBeCloseTo(1, 6);
});

it.each([
  { context: 300 },
  { context: 48, skipRows: 4 },
  { context: 48, rows: 5 },
  { context: 48, from: 47 },
  { context: 1 },
])('rejects %j', async options => {
  const engine = await open();
  const plans = plansOf(engine, 'tq4');
  await expect(measureDivergence(engine, ids, { plans, ...options })).rejects.toThrow(InputError);
});

it('plots every codec once, with its full name, as valid SVG', () => {
  const rows = ['f16', 'tq4', 'tq3', 'kivi2g32/tq3', 'tq2<&'].map(
    (kv, i): DivergenceRow => ({
      kv,
      bits: i === 0 ? 16 : 4.25 - 0.02 * i,
      kld: i * 0.01,
      top1: 0.9,
      perplexity: 20,
      window: { sink: 4, recent: 0, edge: 0 },
      tokens: 100,
    }),
  );
  const svg = divergencePlot(rows, { title: 'A & B', subtitle: '' });
  expect(svg.match(/<circle/g)).toHaveLength(4);
  expect(svg).toContain('>kivi2g32/tq3</text>');
  expect(svg).toContain('tq2&lt;&amp;');
  expect(svg).not.toMatch(/NaN|Infinity|undefined/);
  // Labels of nearby points do not overlap.
  const places = [...svg.matchAll(/class="name (?:start|end)" x="([\d.]+)" y="([\d.]+)"/g)].map(
    ([, x, y]) => `${x} ${y}`,
  );
  expect(new Set(places).size).toBe(4);
});
