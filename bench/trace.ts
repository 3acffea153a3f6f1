/** Which eviction policy finds the most blocks of a request trace, and how long it takes to decide. */
import { readFile, writeFile } from 'node:fs/promises';
import { basename } from 'node:path';
import { formatTable } from '../src/cli/table.ts';
import { InputError } from '../src/util/errors.ts';
import { formatCount, parseCount } from '../src/util/units.ts';
import { traces } from '../test/support/traces.ts';
import { comparePolicies, type TraceRow } from './trace/compare.ts';
import { tracePlot } from './trace/plot.ts';
import { checkTracePolicy, tracePolicyNames } from './trace/policies.ts';
import { countPrefetched } from './trace/prefetch.ts';
import { readTrace } from './trace/read.ts';
import type { TraceRequest } from './trace/replay.ts';

interface Options {
  /** A file of requests, or the name of a synthetic trace. */
  trace?: string;
  capacity?: string;
  policies?: string;
  requests?: string;
  edges?: string;
  json: boolean;
  svg?: string;
}

const parseList = (list: string) => list.split(',').map(item => item.trim());

export async function benchTrace({
  trace: name,
  capacity,
  policies,
  requests,
  edges,
  json,
  svg,
}: Options): Promise<void> {
  if (!name || !capacity) throw new InputError('trace needs a file and --capacity: --help shows an example.');
  const trace = (await openTrace(name)).slice(0, requests === undefined ? undefined : parseCount(requests));
  const capacities = parseList(capacity).map(parseCount);
  const print = (rows: unknown, text: () => string) => console.log(json ? JSON.stringify(rows, null, 1) : text());
  if (edges) {
    const rows = capacities.flatMap(blocks => parseList(edges).map(kind => countPrefetched(trace, blocks, kind)));
    return print(rows, () =>
      formatTable(
        ['capacity', 'edges', 'suggested', 'used'],
        rows.map(row => Object.values(row).map(String)),
      ),
    );
  }
  const names = policies ? parseList(policies) : tracePolicyNames;
  names.forEach(checkTracePolicy);
  const rows = comparePolicies(trace, capacities, names);
  const title = { title: `Hit rate by eviction policy: ${basename(name)}`, subtitle: `${trace.length} requests` };
  if (svg !== undefined) await writeFile(svg, tracePlot(rows, title));
  print(rows, () => render(rows, trace.length));
}

/** Synthetic traces have 4,000 requests. */
async function openTrace(name: string): Promise<TraceRequest[]> {
  if (Object.hasOwn(traces, name)) return traces[name](4000);
  try {
    return readTrace(await readFile(name, 'utf8'));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === undefined) throw error;
    throw new InputError(
      `Cannot read the trace "${name}": ${(error as Error).message}. Synthetic traces: ${Object.keys(traces).join('; ')}.`,
    );
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
