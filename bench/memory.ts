/**
 * How much memory does the process use? Resident memory with a full context, compared with the accounted bytes of
 * weights, scratch and cache. Needs its own process, as with `npm run bench -- memory`.
 *
 * Pages past the prompt are copies of its pages: they take the same memory.
 */

import { formatTable } from '../src/cli/table.ts';
import { parseSpec } from '../src/codec/spec.ts';
import { loadEngine, openModelFile } from '../src/engine/engine.ts';
import { step } from '../src/engine/step.ts';
import { memoryReport } from '../src/plan/memory.ts';
import { createPlan } from '../src/plan/plan.ts';
import { fillTo, promptTokens } from './fill-context.ts';

interface Options {
  model: string;
  kv: string;
  depths: string;
  threads: string;
  json: boolean;
}

const MB = 1e6;
const PROMPT = 512;

export async function benchMemory(options: Options): Promise<void> {
  const [depth, spec] = [Math.max(...options.depths.split(',').map(Number)), options.kv.split(',')[0]];
  const stages: { stage: string; rss: number; heap: number; buffers: number }[] = [];
  const note = (stage: string) => {
    const { rss, heapTotal, arrayBuffers } = process.memoryUsage();
    stages.push({ stage, rss: rss / MB, heap: heapTotal / MB, buffers: arrayBuffers / MB });
  };
  note('node');
  const file = await openModelFile(options.model);
  note('header, tokenizer');
  const context = depth + 1024;
  const plan = createPlan(parseSpec(spec), file.config);
  const engine = await loadEngine(file, { plan, context }, { device: 'wasm', threads: Number(options.threads) });
  note('weights');
  const sequence = engine.openSequence(plan, context);
  await step(engine, [{ sequence, tokens: promptTokens(PROMPT), logits: 'last' }]);
  note(`${PROMPT} tokens`);
  await fillTo(engine, sequence, depth);
  for (let i = 0; i < 8; i++) await step(engine, [{ sequence, tokens: [20 + i], logits: 'last' }]);
  note(`${depth} tokens`);
  const cache = memoryReport(spec, engine.config, sequence.length).totalBytes / MB;
  const { weights, scratch } = engine.bytes;
  const accounted = weights / MB + cache;
  const resident = stages[stages.length - 1].rss;
  const sum = { kv: spec, depth, weights: weights / MB, cache, scratch: scratch / MB, resident };
  if (options.json) console.log(JSON.stringify({ ...sum, rest: resident - accounted, stages }, null, 1));
  else {
    const line = (mb: number) => mb.toFixed(1);
    const lines = stages.map(({ stage, rss, heap, buffers }) => [stage, line(rss), line(heap), line(buffers)]);
    console.log(formatTable(['MB, after', 'resident', 'heap', 'buffers'], lines));
    console.log(
      `${spec} at ${depth} tokens: weights ${line(sum.weights)} MB + cache ${line(cache)} MB = ${line(accounted)} MB; ` +
        `resident ${line(resident)} MB, ${line(resident - accounted)} MB more (scratch ${line(sum.scratch)} MB of that)`,
    );
  }
  sequence.dispose();
  await engine.dispose();
}
