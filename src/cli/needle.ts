/** `kvasir eval --task needle`: which planted facts a model finds again, by cache, length and depth. */
import { writeFile } from 'node:fs/promises';
import { loadEngine, openModelFile, planShape } from '../engine/engine.ts';
import { profileFor } from '../engine/profile.ts';
import { matchOf } from '../eval/needle/ask.ts';
import { heatmapPage, heatmapPlot, heatmapText } from '../eval/needle/heatmap.ts';
import { measureNeedle } from '../eval/needle/run.ts';
import type { DeviceName } from '../kernel/open.ts';
import { choosePlan } from '../plan/auto.ts';
import { planBytes } from '../plan/plan.ts';
import { createProgress } from './progress.ts';
import { parseSpecs } from './session.ts';

export interface NeedleFlags {
  lengths: number[];
  depths: number;
  documents: number;
  seed: number;
  kv: string;
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

const RULE = {
  exact: 'an answer counts if it is the expected words and no more',
  contains: 'an answer counts if it has the expected words in it',
};

export async function evaluateNeedle(name: string, options: NeedleFlags, signal: AbortSignal): Promise<void> {
  const { lengths, depths, documents, seed, device, threads, memory } = options;
  const specs = parseSpecs(options.kv);
  const file = await openModelFile(name);
  const { config } = file;
  const profile = await profileFor(file, specs, options.profile);
  const plans = specs.map(spec => choosePlan(spec, planShape(file), profile));
  const plan = plans.toSorted((a, b) => planBytes(b, config.context) - planBytes(a, config.context))[0];
  const loading = { device, threads, precise: !options.fast, memoryLimit: memory, prefillChunk: options.batch, signal };
  const engine = await loadEngine(file, { plan, context: Math.min(config.context, roomFor(lengths)) }, loading);
  const progress = createProgress({ title: 'needle', unit: 'tokens' });
  try {
    const rows = await measureNeedle(engine, {
      plans,
      lengths,
      depths,
      documents,
      seed,
      signal,
      onProgress: ({ done, total }) => progress.update(done, total),
    });
    progress.end();
    if (signal.aborted) console.error('stopped; this is what was measured until then:');
    const title = `${config.name}: facts found again`;
    const subtitle = `${documents} document${documents === 1 ? '' : 's'} of each length, ${depths} facts each; ${RULE[matchOf(config.name)]}; ${engine.why}`;
    console.log(
      options.json
        ? JSON.stringify(rows, null, 1)
        : `${title}\n${subtitle}\n\n${heatmapText(rows, process.stdout.isTTY === true)}`,
    );
    if (options.svg) await writeFile(options.svg, heatmapPlot(rows, { title, subtitle }));
    if (options.report) await writeFile(options.report, heatmapPage(rows, { title, subtitle }));
  } finally {
    progress.end();
    await engine.dispose();
  }
}

/** Tokens of the longest document with its question and answer, and some to spare. */
const roomFor = (lengths: readonly number[]) => Math.max(...lengths) + 256;
