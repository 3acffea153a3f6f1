/** The results of the browser bench, as tables of ratios. */
import { formatTable } from '../../src/cli/table.ts';

/** Where what ran: an engine with a KV cache format. */
export interface Contender {
  where: 'Chromium' | 'Node' | 'wllama';
  kv: string;
}

export interface Row extends Contender {
  depth: number;
  /** Best milliseconds per token. */
  tokenMs: number;
  /** Tokens per second of the prompt's part from the depth before on; at depth 0, of a prompt of FIRST_PROMPT. */
  prefill: number;
  /** wllama did not get so deep. */
  isEstimate?: boolean;
}

/** Tokens of the prompt whose prefill is measured at depth 0. */
export const FIRST_PROMPT = 512;

/** Max time per token in Chromium, relative to Node. */
const MAX_SLOWDOWN = 1.15;

export function renderTables(setting: string, rows: readonly Row[]): string {
  const find = (where: Row['where'], { depth, kv }: { depth: number; kv?: string }) =>
    rows.find(row => row.where === where && row.depth === depth && (kv === undefined || row.kv === kv));
  const ratio = (a?: number, b?: number) => (a === undefined || b === undefined ? '-' : `${(a / b).toFixed(2)}x`);
  const mark = (text: string, row?: Row) => (row?.isEstimate ? `~${text}` : text);
  const lines = rows.map(row => {
    const { where, kv, depth, tokenMs, prefill } = row;
    const isChromium = where === 'Chromium';
    const node = isChromium ? find('Node', row) : undefined;
    const f16 = isChromium ? find('Chromium', { depth, kv: 'f16' }) : undefined;
    const peer = isChromium ? find('wllama', { depth }) : undefined;
    return [
      depth,
      where,
      kv,
      mark(tokenMs.toFixed(2), row),
      mark((1000 / tokenMs).toFixed(1), row),
      mark(prefill.toFixed(0), row),
      ratio(node && tokenMs, node?.tokenMs),
      ratio(f16?.tokenMs, tokenMs),
      mark(ratio(peer?.tokenMs, tokenMs), peer),
      mark(ratio(prefill, peer?.prefill), peer),
    ];
  });
  const header = ['depth', 'where', 'kv', 'ms/token', 'tokens/s', 'prefill/s', 'of Node', 'f16', 'wllama', 'prefill'];
  return [
    `${setting}.`,
    formatTable(header, lines),
    `of Node: time per token in Chromium, relative to Node (at most ${MAX_SLOWDOWN}x).`,
    'f16, wllama: times as many tokens per second as our f16 cache, and as wllama; prefill: as wllama.',
    ...(rows.some(row => row.isEstimate)
      ? ['~: estimated from the depths that wllama reached in its time (--minutes).']
      : []),
  ].join('\n');
}
