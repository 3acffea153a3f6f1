import { readFile, writeFile } from 'node:fs/promises';
import { basename } from 'node:path';
import type { Command } from 'commander';
import { comparePolicies, type TraceRow } from '../eval/trace/compare.ts';
import { tracePlot } from '../eval/trace/plot.ts';
import { readTrace } from '../eval/trace/read.ts';
import { checkPolicyName, policyNames } from '../eviction/policies.ts';
import { InputError } from '../util/errors.ts';
import { formatCount, parseCount } from '../util/units.ts';
import { formatTable } from './table.ts';

interface Options {
  capacity: number[];
  policy: string[];
  json?: boolean;
  svg?: string;
}

const parseList = (list: string) => list.split(',').map(item => item.trim());

function parsePolicies(list: string): string[] {
  const names = parseList(list);
  for (const name of names) if (name !== 'belady') checkPolicyName(name);
  return names;
}

export function addTrace(program: Command): void {
  program
    .command('trace')
    .argument('<file>', 'request trace: one JSON object per line with the "hash_ids" of a prompt\'s blocks')
    .description('replay a request trace and compare eviction policies')
    .requiredOption('--capacity <blocks>', 'blocks that the cache holds; several with commas', list =>
      parseList(list).map(parseCount),
    )
    .option('--policy <names>', `policies: ${policyNames.join(', ')}, belady`, parsePolicies, [
      ...policyNames,
      'belady',
    ])
    .option('--json', 'print rows as JSON')
    .option('--svg <file>', 'write a plot of the hit rates')
    .addHelpText('after', '\nExample:\n  kvasir trace requests.jsonl --capacity 1000,3000 --policy lru,graph,belady')
    .action(async (file: string, options: Options) => {
      const trace = readTrace(await readTraceFile(file));
      const rows = comparePolicies(trace, options.capacity, options.policy);
      const title = { title: `Hit rate by eviction policy: ${basename(file)}`, subtitle: `${trace.length} requests` };
      if (options.svg !== undefined) await writeFile(options.svg, tracePlot(rows, title));
      console.log(options.json ? JSON.stringify(rows, null, 1) : render(rows, trace.length));
    });
}

async function readTraceFile(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8');
  } catch (error) {
    throw new InputError(`Cannot read the trace "${file}": ${(error as Error).message}`);
  }
}

const percent = (share: number) => (100 * share).toFixed(2);

function render(rows: readonly TraceRow[], requests: number): string {
  return [
    `${formatCount(requests)} requests, ${formatCount(rows[0].blocks)} blocks`,
    formatTable(
      ['capacity', 'policy', 'hit rate %', 'hits', 'evictions', 'gap closed %', 'us/request', 'us/eviction'],
      rows.map(row => [
        formatCount(row.capacity),
        row.policy,
        percent(row.hitRate),
        formatCount(row.hits),
        formatCount(row.evictions),
        row.gapClosed === null ? '-' : percent(row.gapClosed),
        row.usPerRequest.toFixed(1),
        row.usPerEviction.toFixed(1),
      ]),
    ),
    '',
    'gap closed: 0 is LRU, 100 is Belady (evict what is used again last, knowing the future). us: time in the policy.',
  ].join('\n');
}
