/** `npm run bench -- quality`: what it measures, how it resumes, and the page that it writes. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, it, vi } from 'vitest';
import { intervalOfMean } from '../bench/quality/interval.ts';
import { countPlans, pendingJobs } from '../bench/quality/measure.ts';
import { mergeModels, mergeResults } from '../bench/quality/merge.ts';
import { layerNorms } from '../bench/quality/norms.ts';
import { qualityPage } from '../bench/quality/page.ts';
import { drawPictures } from '../bench/quality/pictures.ts';
import {
  createResults,
  DEFAULT_PROFILE,
  type Measurement,
  modelName,
  planId,
  type Results,
  type Setup,
  withMeasuredTexts,
} from '../bench/quality/results.ts';
import { ALL_CODECS, createSuite, defaultTable, planKey, type SuiteOptions } from '../bench/quality/suite.ts';
import { parseText } from '../bench/quality/texts.ts';
import { benchQuality } from '../bench/quality.ts';
import { InputError } from '../src/util/errors.ts';
import { writeGguf } from './support/gguf-writer.ts';
import { seeded } from './support/random.ts';
import { tinyModel } from './support/tiny-model.ts';

const setup: Setup = {
  ...{ model: 'model.Q4_1.gguf', fingerprint: 'ab', parameters: 100 },
  ...{ device: 'js', layers: 2, headDim: 64, context: 2048 },
};
const textInfo = { file: 'wiki.txt', special: false, skip: 0, hash: '1' };
const suiteOptions: SuiteOptions = {
  texts: ['wiki', 'code', 'chat'],
  rows: 4,
  headDim: 64,
  codecs: ALL_CODECS,
  transfer: [],
};

const measurement = (kv: string, text: string, row: number, kld: number, bits = 4): Measurement => ({
  ...{ ...planKey(kv), text, row, kld, bits, top1: 0.9, perplexity: 20 },
});

function exampleResults(): Results {
  const rows = ['wiki', 'code'].flatMap(text =>
    [0, 1, 2, 3].flatMap(row => [
      measurement('f16', text, row, 0, 16),
      measurement('tq4', text, row, text === 'wiki' ? 0.01 + 0.001 * row : 0.03, 4.25),
      measurement('q4_0', text, row, 0.02, 4.5),
      measurement('tq2', text, row, 0.17, 2.25),
    ]),
  );
  return {
    ...createResults(setup),
    codecs: ['tq4', 'q4_0', 'tq2', 'mead2', 'tq3'],
    texts: { wiki: { ...textInfo, skip: 100 }, code: { ...textInfo, file: 'code.txt' } },
    refused: { [planId(planKey('mead2'))]: 'not calibrated' },
    measurements: rows,
    prefill: [{ kv: 'tq4', tokens: 2048, seconds: 2, f16Seconds: 1 }],
  };
}

const render = (...models: Results[]) =>
  qualityPage(models.map(results => ({ results, pictures: drawPictures(results, 'quality') })));
/** Cells of the first line that starts with a label, in a section. */
const cellsOf = (page: string, section: string, label: string) =>
  page
    .slice(page.indexOf(`# ${section}\n`))
    .split('\n')
    .find(line => line.startsWith(`| ${label} `))
    ?.split('|')
    .slice(1, -1)
    .map(cell => cell.trim());

describe('the page', () => {
  const page = render(exampleResults());

  it('has the mean over rows per kind of text, true bits, top-1, and the speed of prefill', () => {
    expect(cellsOf(page, 'Default window', 'codec')).toEqual(['codec', 'bits', 'wiki', 'code', 'top-1', 'prefill']);
    expect(cellsOf(page, 'Default window', '`tq4`')).toEqual([
      '`tq4`',
      '4.250',
      '**.011** ±.002',
      '**.03** ±0',
      '90.0 %',
      '50 %',
    ]);
  });

  it('has bold numbers where no codec with as few bits is better', () => {
    expect(cellsOf(page, 'Default window', '`q4_0`')?.slice(2, 4)).toEqual(['.02 ±0', '**.02** ±0']);
    expect(cellsOf(page, 'Default window', '`tq2`')?.slice(2, 4)).toEqual(['**.17** ±0', '**.17** ±0']);
  });

  it('lists codecs that are not calibrated or not measured', () => {
    expect(cellsOf(page, 'Default window', '`mead2`')).toEqual(['`mead2`', 'not calibrated', '', '', '', '']);
    expect(page).toContain('Not measured: `tq3`.');
  });

  it('shows no mean over fewer rows than the others have', () => {
    const results = exampleResults();
    results.measurements = results.measurements.filter(
      ({ kv, text, row }) => kv !== 'tq4' || text !== 'wiki' || row < 3,
    );
    expect(cellsOf(render(results), 'Default window', '`tq4`')?.slice(2, 4)).toEqual(['-', '**.03** ±0']);
  });

  it('names the model by its file, the texts, and the command without paths', () => {
    expect(page).toContain('`model.Q4_1.gguf`');
    expect(page).toContain('--part tables,prefill');
    expect(page).toContain('--texts "wiki=wiki.txt:100,code=code.txt"');
    expect(page).toContain('![Divergence against bits](quality-model-q4-1-bits.svg)');
  });

  it('has ablations only if they were measured', () => {
    for (const title of ['Ablations', 'Token norms', 'Layers']) expect(page).not.toContain(`# ${title}`);
    const results = exampleResults();
    results.measurements.push(...[0, 1].map(row => measurement('kivi2g16', 'code', row, 0.1)));
    const section = render(results).split('#### Group size')[1];
    expect(section).toMatch(/\| codec +\| group \| bits +\| code \|/);
    expect(section).toMatch(/\| `kivi2g16` \| 16 +\| 4.000 \| .1 +\|/);
    expect(section).not.toContain('####');
  });

  it('has lines of at most 120 characters', () => {
    expect(page.split('\n').filter(line => line.length > 120)).toEqual([]);
  });
});

describe('several models', () => {
  const other = () => {
    const results = exampleResults();
    results.setup = { ...setup, model: 'large.gguf', fingerprint: 'cd', parameters: 200 };
    results.measurements = results.measurements
      .filter(({ kv }) => kv !== 'q4_0')
      .map(one => ({ ...one, kld: one.kv === 'tq2' && one.text === 'code' ? 0.81 : one.kld / 2 }));
    results.prefill = [];
    return results;
  };
  const models = mergeModels([exampleResults(), other()]);
  const page = render(...models);

  it('are on one page, the largest first, with the same codecs in the summaries', () => {
    expect(models.map(modelName)).toEqual(['large', 'model.Q4_1']);
    expect(page.match(/^## .*/gm)).toEqual([
      '## Summary',
      '## Which codec breaks on which model',
      '## large',
      '## model.Q4_1',
    ]);
    const summary = page.slice(page.indexOf('## Summary'), page.indexOf('## Which'));
    expect(summary).toMatch(/^large, 4 rows of 2,048 tokens per kind of text:$/m);
    expect(summary.match(/^\| `tq2` .*/gm)).toEqual([
      '| `tq2`   | 2.250          | .085   | .81  |',
      '| `tq2`   | 2.250          | .17   | .17  |',
    ]);
  });

  it('have the columns that were measured for each', () => {
    expect(cellsOf(page, 'large', 'codec')).not.toContain('prefill');
    expect(cellsOf(page, 'model.Q4_1', 'codec')).toContain('prefill');
    expect(cellsOf(page, 'large', '`tq4`')?.slice(2, 4)).toEqual(['**.0057** ±.0009', '**.015** ±0']);
  });

  it('list codecs that break, with their worst text', () => {
    expect(cellsOf(page, 'Which codec breaks on which model', '`tq2`')).toEqual(['`tq2`', '**.81** code', '.17 wiki']);
    expect(cellsOf(page.split('## large')[0], 'Which codec breaks on which model', '`tq4`')).toBeUndefined();
    const good = exampleResults();
    good.measurements = good.measurements.filter(({ kv }) => kv !== 'tq2');
    expect(render(good)).not.toContain('Which codec breaks');
    expect(cellsOf(render(good, other()), 'Which codec breaks on which model', '`tq2`')?.[1]).toBe('-');
  });
});

describe('the interval of a mean', () => {
  it('is the same for the same rows, and 0 if they are equal', () => {
    const rows = [0.1, 0.3, 0.2, 0.5];
    expect(intervalOfMean(rows)).toBe(intervalOfMean([...rows]));
    expect(intervalOfMean([0.2, 0.2, 0.2])).toBeCloseTo(0, 12);
  });

  it('covers the mean in 95 % of cases with 8 rows', () => {
    const random = seeded(7);
    const covered = Array.from({ length: 400 }, () => {
      const rows = Array.from({ length: 8 }, () => random.normal());
      return Math.abs(rows.reduce((a, b) => a + b) / 8) <= intervalOfMean(rows);
    });
    const share = covered.filter(Boolean).length / covered.length;
    expect(share).toBeGreaterThan(0.92);
    expect(share).toBeLessThan(0.98);
  });

  it('is not shown for few rows', () => {
    const results = exampleResults();
    results.measurements = results.measurements.filter(({ row }) => row < 3);
    expect(render(results)).not.toContain('±');
  });

  it('is 1.96 standard errors for many rows', () => {
    const random = seeded(5);
    const rows = Array.from({ length: 400 }, () => 1 + random.normal());
    expect(intervalOfMean(rows)).toBeGreaterThan((0.9 * 1.96) / 20);
    expect(intervalOfMean(rows)).toBeLessThan((1.1 * 1.96) / 20);
  });
});

describe('pictures', () => {
  it('show every codec that was measured, with a legend and a scale for layers', () => {
    const results = exampleResults();
    results.sensitivities = { mead2: [0.01, 0.02].map(key => ({ key, value: key / 2 })) };
    const [plot, layers] = drawPictures(results, 'quality');
    expect(plot.svg.match(/<circle/g)).toHaveLength(3);
    expect(plot.svg).toContain('model.Q4_1.gguf');
    for (const label of ['keys', 'values', 'nats per token', '0.02']) expect(layers.svg).toContain(`>${label}<`);
    expect(plot.svg + layers.svg).not.toMatch(/NaN|Infinity|undefined/);
  });
});

describe('the suite', () => {
  const suite = createSuite({ ...suiteOptions, transfer: ['wiki', 'code'] });

  it('measures every codec once per row and text, with equal windows', () => {
    const jobs = pendingJobs(suite, createResults(setup));
    const ids = jobs.flatMap(({ text, row, plans }) => plans.map(plan => `${text} ${row} ${planId(plan)}`));
    expect(new Set(ids).size).toBe(ids.length);
    expect(defaultTable(suite).entries.map(({ plan }) => plan.kv)).toEqual([...ALL_CODECS]);
    for (const kv of ['tq35', 'tri12i4/tq4', 'mead2']) expect(ALL_CODECS).toContain(kv);
  });

  it('resumes: what is measured or refused is not pending, and rows come before further rows', () => {
    fc.assert(
      fc.property(fc.integer({ min: 0, max: 400 }), cut => {
        const results = createResults(setup);
        results.refused = { [planId(planKey('mead2'))]: 'not calibrated' };
        const all = pendingJobs(suite, results);
        const done = all.flatMap(({ text, row, plans }) => plans.map(plan => ({ ...plan, text, row }))).slice(0, cut);
        results.measurements = done.map(one => ({ ...one, kld: 1, bits: 1, top1: 1, perplexity: 1 }));
        const rest = pendingJobs(suite, results);
        expect(countPlans(rest)).toBe(countPlans(all) - done.length);
        const rows = rest.filter(({ pageTokens }) => pageTokens === 128).map(({ row }) => row);
        expect(rows).toEqual([...rows].sort((a, b) => a - b));
      }),
      { numRuns: 20 },
    );
  });

  it('keeps groups of values within a head', () => {
    const kv = suite.find(({ title }) => title === 'Group size')!.entries.map(({ plan }) => plan.kv);
    expect(kv).toContain('kivi2g128/kivi2g64');
    expect(kv).toContain('kivi2g64');
  });

  it('measures transfer with each profile on all texts', () => {
    const { entries, texts } = suite.find(({ title }) => title.startsWith('Transfer'))!;
    expect(texts).toEqual(suiteOptions.texts);
    expect(entries.filter(({ plan }) => plan.kv === 'oaken').map(({ plan }) => plan.profile)).toEqual([
      DEFAULT_PROFILE,
      'wiki',
      'code',
    ]);
  });
});

describe('merging results', () => {
  it('joins texts and measurements', () => {
    const [a, b] = [exampleResults(), exampleResults()];
    a.texts = { wiki: a.texts.wiki };
    a.measurements = a.measurements.filter(({ text }) => text === 'wiki');
    const merged = mergeResults(a, b);
    expect(Object.keys(merged.texts)).toEqual(['wiki', 'code']);
    expect(merged.measurements).toHaveLength(b.measurements.length);
    expect(render(merged)).toBe(render(b));
  });

  it('joins runs of one text and some codecs each, in any order', () => {
    const whole = exampleResults();
    const parts = ['wiki', 'code'].flatMap(text =>
      [
        ['tq4', 'mead2'],
        ['q4_0', 'tq2', 'tq3'],
      ].map(
        (codecs): Results => ({
          ...exampleResults(),
          codecs,
          texts: { [text]: whole.texts[text] },
          refused: codecs.includes('mead2') ? whole.refused : {},
          measurements: whole.measurements.filter(one => one.text === text && ['f16', ...codecs].includes(one.kv)),
        }),
      ),
    );
    expect(mergeModels(parts)).toHaveLength(1);
    expect(render(...mergeModels(parts))).toBe(render(whole));
    const rows = (results: Results) => results.measurements.map(one => JSON.stringify(one)).sort();
    expect(rows(mergeModels(parts.toReversed())[0])).toEqual(rows(whole));
  });

  it('has "-" where a codec was measured on some of the texts', () => {
    const whole = exampleResults();
    const some = { ...exampleResults(), codecs: ['q4_0', 'tq2'], texts: { code: whole.texts.code } };
    some.measurements = some.measurements.filter(({ kv, text }) => text === 'code' && kv !== 'tq4');
    const rest = { ...exampleResults(), codecs: ['tq4'], texts: { wiki: whole.texts.wiki } };
    rest.measurements = rest.measurements.filter(({ kv, text }) => text === 'wiki' && ['f16', 'tq4'].includes(kv));
    const page = render(...mergeModels([rest, some]));
    expect(cellsOf(page, 'Default window', '`tq4`')?.slice(2, 4)).toEqual(['**.011** ±.002', '-']);
    expect(cellsOf(page, 'Default window', '`q4_0`')?.slice(2, 4)).toEqual(['-', '**.02** ±0']);
  });

  it('prefers a measurement to a refusal', () => {
    const [a, b] = [exampleResults(), exampleResults()];
    b.measurements.push(...[0, 1].map(row => measurement('mead2', 'wiki', row, 0.05, 2)));
    expect(mergeResults(a, b).refused).toEqual({});
  });

  it('leaves out texts without measurements', () => {
    const results = exampleResults();
    results.texts.chat = { ...textInfo, file: 'chat.txt' };
    expect(render(withMeasuredTexts(results))).toBe(render(exampleResults()));
  });

  it.each<[string, (results: Results) => void]>([
    ['model', results => Object.assign(results, { setup: { ...setup, fingerprint: 'cd' } })],
    ['text', results => Object.assign(results.texts, { wiki: { ...textInfo, hash: '2' } })],
    ['profile', results => Object.assign(results.profiles, { default: { hash: '2', tokens: 1, sources: [] } })],
  ])('refuses those of another %s', (_, change) => {
    const [a, b] = [exampleResults(), exampleResults()];
    a.profiles = { default: { hash: '1', tokens: 1, sources: [] } };
    change(b);
    expect(() => mergeResults(a, b)).toThrow(InputError);
  });
});

it.each([
  ['wiki=a/b.txt', { name: 'wiki', path: 'a/b.txt', special: false, skip: 0 }],
  ['wiki=a.txt:100', { name: 'wiki', path: 'a.txt', special: false, skip: 100 }],
  ['a chat=c:/a.txt:special:3', { name: 'a chat', path: 'c:/a.txt', special: true, skip: 3 }],
])('--texts %s', (option, text) => expect(parseText(option)).toEqual(text));

it('--texts must name the kind of each text', () => expect(() => parseText('wiki.txt')).toThrow(InputError));

it('first tokens with a small norm have large errors, until tokens are scaled', () => {
  const random = seeded(3);
  const dim = 64;
  const keys = Array.from({ length: 128 }, (_, t) =>
    Float32Array.from({ length: dim }, () => (t < 4 ? 0.1 : 1) * (3 + random.next())),
  );
  const { norms, transforms } = layerNorms(keys, dim);
  for (const norm of norms) expect(norm).toBeCloseTo(0.1, 2);
  const { neither, scaling } = Object.fromEntries(transforms.map(({ name, ...numbers }) => [name, numbers]));
  expect(neither.share).toBeGreaterThan(0.5);
  expect(scaling.share).toBeLessThan(0.3);
  expect(scaling.firstError).toBeLessThan(1.5 * scaling.laterError);
  expect(neither.laterError).toBeGreaterThan(2 * scaling.laterError);
});

describe('a whole run', () => {
  let folder: string;
  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'kvasir-quality-'));
    writeFileSync(join(folder, 'tiny.gguf'), writeGguf(tinyModel({ tied: false })));
    const sentence = 'The mead of poetry was brewed from honey and the blood of Kvasir, the wisest of all. ';
    writeFileSync(join(folder, 'prose.txt'), sentence.repeat(20));
    writeFileSync(join(folder, 'code.special.txt'), 'for (const leaf of leaves) device.free(leaf);\n'.repeat(20));
    vi.spyOn(console, 'log').mockImplementation(() => {});
    vi.spyOn(console, 'error').mockImplementation(() => {});
  });
  afterAll(() => {
    rmSync(folder, { recursive: true });
    vi.restoreAllMocks();
  });

  it('writes the page, its pictures and its numbers, and resumes from the numbers', async () => {
    const texts = join(folder, 'texts');
    const out = join(folder, 'quality.md');
    const options = {
      model: join(folder, 'tiny.gguf'),
      ...{ device: 'wasm', threads: '1', context: '160', rows: '1', kv: 'tq2', part: 'tables,prefill', out },
      texts: `prose=${join(folder, 'prose.txt')},code=${join(folder, 'code.special.txt')}:special:1`,
    };
    await expect(benchQuality({ ...options, texts })).rejects.toThrow(InputError);
    await benchQuality(options);
    const read = (name: string) => readFileSync(join(folder, name), 'utf8');
    const [page, json] = [read('quality.md'), read('quality.json')];
    expect(page).toContain('`tiny.gguf`');
    expect(read('quality-tiny-bits.svg')).toContain('>tq2</text>');
    const [results]: Results[] = JSON.parse(json);
    // f16, and tq2 with three windows, on two texts.
    expect(results.measurements).toHaveLength(2 * (1 + 3));

    // A run that was stopped: some measurements are missing.
    results.measurements = results.measurements.filter((_, i) => i % 3 !== 1);
    writeFileSync(join(folder, 'quality.json'), JSON.stringify([results]));
    await benchQuality(options);
    expect(read('quality.md')).toBe(page);
    const sorted = (text: string) =>
      text
        .split('\n')
        .map(line => line.replace(/,$/, ''))
        .sort();
    expect(sorted(read('quality.json'))).toEqual(sorted(json));

    const again = { ...options, from: join(folder, 'quality.json'), out: join(folder, 'again.md') };
    await benchQuality(again);
    expect(read('again.md')).toBe(page.replaceAll('quality-tiny', 'again-tiny'));

    // A second model in the same file.
    writeFileSync(join(folder, 'second.gguf'), writeGguf(tinyModel({ tied: true })));
    await benchQuality({ ...options, model: join(folder, 'second.gguf'), part: 'tables' });
    const names = (JSON.parse(read('quality.json')) as Results[]).map(({ setup }) => setup.model);
    expect(names).toEqual(['tiny.gguf', 'second.gguf']);
    expect(read('quality.md').match(/^## (tiny|second)$/gm)).toEqual(['## tiny', '## second']);
    expect(read('quality.md')).toContain(page.slice(page.indexOf('### Default window')));
    await benchQuality({ ...again, from: `${again.from},${again.out.replace('.md', '.json')}` });
    expect(read('again.md')).toBe(read('quality.md').replaceAll('quality-', 'again-'));
  });
});
