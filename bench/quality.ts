/**
 * What does each codec cost in quality? Measures all codecs on several kinds of text, with equal windows and true bits, and
 * writes docs/quality.md with its pictures. The raw numbers are stored beside it after every measurement: a stopped run
 * continues where it was, and `--from` renders them again, or merges the results of several runs and models.
 */
import { writeFile } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { runInterruptible } from '../src/cli/model-command.ts';
import { createProgress } from '../src/cli/progress.ts';
import { InputError } from '../src/util/errors.ts';
import { countPlans, type Measuring, pendingJobs, runJobs } from './quality/measure.ts';
import { mergeModels } from './quality/merge.ts';
import { measureTokenNorms } from './quality/norms.ts';
import { qualityPage } from './quality/page.ts';
import { drawPictures } from './quality/pictures.ts';
import { measurePrefill } from './quality/prefill.ts';
import { type Results, readResults, withMeasuredTexts, writeResults } from './quality/results.ts';
import { openSession, type Session, type SessionOptions } from './quality/session.ts';
import { defaultTable, PAGE_TOKENS, planKey } from './quality/suite.ts';

export interface QualityOptions extends SessionOptions {
  /** tables, prefill, ablations and pictures, comma-separated; default: all. */
  part?: string;
  out: string;
  /** Results to render instead of measuring, comma-separated. */
  from?: string;
}

const PARTS = ['tables', 'prefill', 'ablations', 'pictures'] as const;
type QualityPart = (typeof PARTS)[number];

export async function benchQuality(options: QualityOptions): Promise<void> {
  const parts = parseParts(options.part);
  if (options.from === undefined) return runInterruptible(signal => measure(options, parts, signal));
  const found = await Promise.all(options.from.split(',').map(readExisting));
  await writePage(mergeModels(found.flat()), options);
}

function parseParts(part: string | undefined): ReadonlySet<QualityPart> {
  const parts = (part?.split(',') ?? PARTS) as QualityPart[];
  const unknown = parts.find(name => !PARTS.includes(name));
  if (unknown) throw new InputError(`--part must be one of ${PARTS.join(', ')}, not "${unknown}".`);
  return new Set(parts);
}

async function readExisting(path: string): Promise<Results[]> {
  const results = await readResults(path);
  if (!results) throw new InputError(`--from: ${path} does not exist.`);
  return results;
}

const resultsPath = (out: string) => out.replace(/(\.md)?$/, '.json');

async function measure(options: QualityOptions, parts: ReadonlySet<QualityPart>, signal: AbortSignal): Promise<void> {
  const session = await openSession(options);
  const stored = (await readResults(resultsPath(options.out))) ?? [];
  const isThis = ({ setup }: Results) => setup.model === session.initial.setup.model;
  // A profile that was calibrated for more codecs refuses fewer.
  const known = stored.filter(isThis).map(results => ({ ...results, refused: {} }));
  const [results] = mergeModels([...known, session.initial]);
  const models = [...stored.filter(one => !isThis(one)), results];
  const save = () => writeResults(resultsPath(options.out), models);
  await save();
  await measureRows(session, results, parts, save, signal);
  if (parts.has('ablations') && !signal.aborted) await measureNorms(session, results, save);
  if (parts.has('prefill')) await measurePrefillTimes(session, results, save, signal);
  if (signal.aborted) console.error('stopped; the same command continues.');
  else await writePage(mergeModels(models), options);
}

async function measureRows(
  session: Session,
  results: Results,
  parts: ReadonlySet<QualityPart>,
  save: () => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const { texts, context, plans, sections, device } = session;
  const wanted = sections.filter(({ part }) => parts.has(part));
  const jobs = pendingJobs(wanted, results);
  const total = countPlans(jobs);
  console.error(`quality: ${total} evaluations of one row with one plan, ${context} tokens each, on ${device}`);
  const progress = createProgress({ title: 'quality', unit: 'evaluations', total });
  let done = 0;
  const measuring: Measuring = {
    ...{ results, texts, context, signal, save },
    onProgress: evaluations => progress.update(done + evaluations),
    onFailed: message => progress.note(`not measured: ${message}`),
  };
  try {
    for (const pageTokens of new Set(jobs.map(job => job.pageTokens))) {
      const ofSize = jobs.filter(job => job.pageTokens === pageTokens);
      await session.withEngine({ pageTokens, precise: true }, engine => runJobs(engine, ofSize, plans, measuring));
      done += countPlans(ofSize);
      if (signal.aborted) return;
    }
  } finally {
    progress.end();
  }
}

/** On the first row of the first text. */
async function measureNorms({ withEngine, texts, context }: Session, results: Results, save: () => Promise<void>) {
  const { name, ids, skip } = texts[0];
  if (results.norms[name]) return;
  await withEngine({ pageTokens: PAGE_TOKENS, precise: true }, async engine => {
    results.norms[name] = await measureTokenNorms(engine, ids.slice(skip * context));
  });
  await save();
}

/** With the arithmetic of generation, as a user would notice it. */
async function measurePrefillTimes(
  { withEngine, texts, context, plans, sections }: Session,
  results: Results,
  save: () => Promise<void>,
  signal: AbortSignal,
): Promise<void> {
  const pending = defaultTable(sections)
    .entries.map(({ plan }) => plan)
    .filter(plan => !plans.refusal(plan) && !results.prefill.some(({ kv }) => kv === plan.kv));
  if (pending.length === 0) return;
  const progress = createProgress({ title: 'prefill', unit: 'codecs', total: pending.length });
  const tokens = texts[0].ids.slice(0, context);
  const f16 = plans.get(planKey('f16'));
  await withEngine({ pageTokens: PAGE_TOKENS, precise: false }, async engine => {
    for (const [i, key] of pending.entries()) {
      if (signal.aborted) return;
      results.prefill.push({ ...(await measurePrefill(engine, plans.get(key), f16, tokens)), kv: key.kv });
      await save();
      progress.update(i + 1);
    }
  });
  progress.end();
}

/** The page, its pictures and its results; the largest model comes first. */
async function writePage(models: readonly Results[], { out }: QualityOptions): Promise<void> {
  const page = basename(out).replace(/\.md$/, '');
  const parts = models
    .filter(({ measurements }) => measurements.length > 0)
    .map(withMeasuredTexts)
    .map(results => ({ results, pictures: drawPictures(results, page) }));
  if (parts.length === 0) throw new InputError('Nothing was measured, so there is no page to write.');
  await writeResults(resultsPath(out), models);
  for (const { file, svg } of parts.flatMap(({ pictures }) => pictures)) await writeFile(join(dirname(out), file), svg);
  await writeFile(out, qualityPage(parts));
  for (const { results, pictures } of parts)
    console.log(
      `${out}: ${results.setup.model}, ${results.measurements.length} measurements, ${pictures.length} pictures`,
    );
}
