/** `kvasir eval --task needle`: how many planted facts a model retrieves, by codec, length and depth. */
import { constants } from 'node:fs';
import { access, writeFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { evaluateNeedle } from '../eval/evaluate.ts';
import { heatmapPage, heatmapPlot, heatmapText } from '../eval/needle/heatmap.ts';
import { InputError } from '../util/errors.ts';
import { type DeviceFlags, deviceOptions } from './model-command.ts';
import { resolveProfileFlag } from './profile-flag.ts';
import { createProgress } from './progress.ts';
import { formatDevice } from './stats.ts';
import { formatPlural, printResult } from './table.ts';

/** The flags that all tasks share. */
export interface EvaluationFlags extends DeviceFlags {
  kv?: string[];
  profile?: string;
  batch: number;
  fast?: boolean;
  json?: boolean;
  /** Files that end in .svg or .html. */
  out?: string[];
}

export interface NeedleFlags extends EvaluationFlags {
  lengths?: number[];
  depths?: number;
  documents?: number;
  seed?: number;
}

const MATCH_RULES = {
  exact: 'an answer counts if it equals the expected words',
  contains: 'an answer counts if it contains the expected words',
};

/** The shared flags as options of the library. */
export const evaluationOptions = async (model: string, flags: EvaluationFlags, signal: AbortSignal) => ({
  ...deviceOptions(flags),
  kv: flags.kv,
  profile: await resolveProfileFlag(flags.profile, model, signal),
  prefillChunk: flags.batch,
  fast: flags.fast,
  signal,
});

/** Whether the files of `--out` can be written: before the evaluation, which may take hours. */
export async function checkFiles(out: readonly string[] = []): Promise<void> {
  for (const path of out)
    await access(dirname(path), constants.W_OK).catch(({ code }) => {
      throw new InputError(`${path} cannot be written (${code}). Check --out.`);
    });
}

/** Writes the files of `--out`: a plot or a page, by their names. */
export async function writeFiles(out: readonly string[] = [], plot: () => string, page: () => string): Promise<void> {
  for (const path of out) await writeFile(path, path.endsWith('.svg') ? plot() : page());
}

export async function runNeedle(name: string, options: NeedleFlags, signal: AbortSignal): Promise<void> {
  const { lengths, depths = 10, documents = 4, seed, json, out } = options;
  const progress = createProgress({ title: 'needle', unit: 'tokens' });
  const { model, device, rows, match, notices } = await evaluateNeedle(name, {
    ...(await evaluationOptions(name, options, signal)),
    ...{ lengths, depths, documents, seed },
    onProgress: ({ done, total }) => progress.update(done, total),
  }).finally(progress.end);
  for (const notice of notices) console.error(notice);
  if (signal.aborted) console.error('stopped; results so far:');
  const title = `${model}: facts retrieved`;
  const subtitle = `${formatPlural(documents, 'document')} of each length, ${depths} facts each; ${MATCH_RULES[match]}; ${formatDevice(device)}`;
  const heading = { title, subtitle };
  printResult(json, rows, () => `${title}\n${subtitle}\n\n${heatmapText(rows, process.stdout.isTTY === true)}`);
  await writeFiles(
    out,
    () => heatmapPlot(rows, heading),
    () => heatmapPage(rows, heading),
  );
}
