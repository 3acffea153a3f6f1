/** `kvasir eval --task needle`: how many planted facts a model retrieves, by codec, length and depth. */
import { writeFile } from 'node:fs/promises';
import { evaluateNeedle } from '../eval/evaluate.ts';
import { heatmapPage, heatmapPlot, heatmapText } from '../eval/needle/heatmap.ts';
import type { DeviceName } from '../kernel/open.ts';
import { parseSpecList } from './model-command.ts';
import { resolveProfileFlag } from './profile-flag.ts';
import { createProgress } from './progress.ts';

export interface NeedleFlags {
  lengths: number[];
  depths: number;
  documents: number;
  seed: number;
  kv?: string;
  profile?: string;
  batch: number;
  device: DeviceName;
  threads?: number;
  memory?: number;
  fast?: boolean;
  json?: boolean;
  svg?: string;
  report?: string;
}

const MATCH_RULES = {
  exact: 'an answer counts if it equals the expected words',
  contains: 'an answer counts if it contains the expected words',
};

/** The flags that both tasks share, as options of the library. */
export const evaluationOptions = async (
  model: string,
  flags: Omit<NeedleFlags, 'lengths' | 'depths' | 'documents' | 'seed'>,
  signal: AbortSignal,
) => ({
  kv: flags.kv === undefined ? undefined : parseSpecList(flags.kv),
  profile: await resolveProfileFlag(flags.profile, model, signal),
  device: flags.device,
  threads: flags.threads,
  memoryLimit: flags.memory,
  prefillChunk: flags.batch,
  fast: flags.fast,
  signal,
});

export async function runNeedle(name: string, options: NeedleFlags, signal: AbortSignal): Promise<void> {
  const { lengths, depths, documents, seed } = options;
  const progress = createProgress({ title: 'needle', unit: 'tokens' });
  try {
    const { model, device, rows, match, notices } = await evaluateNeedle(name, {
      ...(await evaluationOptions(name, options, signal)),
      lengths,
      depths,
      documents,
      seed,
      onProgress: ({ done, total }) => progress.update(done, total),
    });
    progress.end();
    for (const notice of notices) console.error(notice);
    if (signal.aborted) console.error('stopped; results so far:');
    const title = `${model}: facts retrieved`;
    const subtitle = `${documents} document${documents === 1 ? '' : 's'} of each length, ${depths} facts each; ${MATCH_RULES[match]}; ${device}`;
    console.log(
      options.json
        ? JSON.stringify(rows, null, 1)
        : `${title}\n${subtitle}\n\n${heatmapText(rows, process.stdout.isTTY === true)}`,
    );
    if (options.svg) await writeFile(options.svg, heatmapPlot(rows, { title, subtitle }));
    if (options.report) await writeFile(options.report, heatmapPage(rows, { title, subtitle }));
  } finally {
    progress.end();
  }
}
