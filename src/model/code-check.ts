/**
 * Compares attention on codes with attention on f16, at the one moment when a page has both: its last row has just read it
 * from the f16 tail. The page is encoded once more, into a leaf of its own, and the row attends again, to the codes. The
 * pass itself reads none of this, so its results stay the same, bit for bit.
 */
import { type LeafLayout, leafBlock, windowBlock } from '../cache/leaf.ts';
import type { Sequence, SequenceRun } from '../cache/sequence.ts';
import type { AttendOptions, Block, Device, KvBlocks, KvRun, KvView, Tensor } from '../kernel/device.ts';
import { sealPosition } from '../kernel/visibility.ts';
import type { ModelConfig } from './model-config.ts';

/** What a check needs on the device, allocated once. */
export interface CheckScratch {
  leaf: Block;
  windowPage?: Block;
  query: Tensor;
  output: Tensor;
  /** For each layer that is checked, the output on f16 and the output on codes. */
  outputs: Tensor;
}

/** Where a page is complete: the last row that reads it from f16. */
interface LastRow {
  round: number;
  /** In the batch. */
  row: number;
  /** The row's run on codes, as row 0. */
  run: KvRun;
}

/** Checks the codes of one page per pass. */
export interface CodeCheck {
  scratch: CheckScratch;
  recent: number;
  /** The layers to check in a pass that completes a page. */
  chooseLayers(): readonly number[];
  /** Gets a layer's attention output of the last row of a page: on f16, and on codes. [head][dim]. */
  onOutputs(layer: number, exact: Float32Array, coded: Float32Array): void;
}

/** The checks of one pass. */
export interface PassCheck {
  /** Its blocks, for `ensureMemory`. */
  view: KvBlocks;
  /** Call it after a round has attended. */
  check(layer: number, round: number, q: Tensor, attention: Tensor): void;
  /** Call it when all is recorded. */
  read(): Promise<void>;
}

export function createCheckScratch(
  device: Pick<Device, 'createTensor' | 'createBlock'>,
  { layers, heads, headDim }: ModelConfig,
  leaf: LeafLayout,
): CheckScratch {
  const cols = heads * headDim;
  return {
    leaf: device.createBlock(...leafBlock(leaf)),
    windowPage: leaf.windowPage && device.createBlock(...windowBlock(leaf)),
    query: device.createTensor(1, cols),
    output: device.createTensor(1, cols),
    outputs: device.createTensor(2 * layers, cols),
  };
}

/** The chunks of a pass, and where they are in it. */
interface Placed {
  chunk: { sequence: Sequence };
  row: number;
  runs: readonly SequenceRun[];
}

/** Undefined if the pass completes no page. */
export function startCheck(
  device: Device,
  { scratch, recent, chooseLayers, onOutputs }: CodeCheck,
  placed: readonly Placed[],
  optionsOf: (layer: number) => AttendOptions,
): PassCheck | undefined {
  const last = findLastRow(placed, recent, scratch);
  if (!last) return undefined;
  const { query, output, outputs } = scratch;
  const { view, sealedPages } = last.run;
  const seals = [{ view, page: sealedPages - 1 }];
  const runs = [last.run];
  const layers = chooseLayers();
  const checked: number[] = [];
  return {
    view,
    check(layer, round, q, attention) {
      if (round !== last.round || !layers.includes(layer)) return;
      const row = 2 * checked.length;
      checked.push(layer);
      device.seal(layer, seals);
      device.copyRows(q, last.row, query, 0, 1);
      device.attend(layer, query, output, runs, optionsOf(layer));
      device.copyRows(attention, last.row, outputs, row, 1);
      device.copyRows(output, 0, outputs, row + 1, 1);
    },
    async read() {
      const rows = await device.readRows(outputs, 0, 2 * checked.length);
      const row = (index: number) => rows.subarray(index * outputs.cols, (index + 1) * outputs.cols);
      for (const [i, layer] of checked.entries()) onOutputs(layer, row(2 * i), row(2 * i + 1));
    },
  };
}

/** The first page that a pass completes. */
function findLastRow(placed: readonly Placed[], recent: number, scratch: CheckScratch): LastRow | undefined {
  for (const { chunk, row, runs } of placed) {
    const { view } = chunk.sequence;
    const { pageTokens } = view.shape;
    const round = runs.findIndex(
      ({ position, count, sealedPages }) => position + count === sealPosition(sealedPages + 1, { pageTokens, recent }),
    );
    if (round < 0) continue;
    const run = runs[round];
    const sealedPages = run.sealedPages + 1;
    return {
      round,
      row: row + run.row + run.count - 1,
      run: {
        view: viewWith(view, scratch, run.sealedPages),
        row: 0,
        count: 1,
        position: run.position + run.count - 1,
        sealedPages,
      },
    };
  }
  return undefined;
}

/** The view with these blocks as page `page`, which has no codes of its own yet. */
const viewWith = (
  { shape, leaves, windowPages, firstLeaf, tail, sinkBlock }: KvView,
  { leaf, windowPage }: CheckScratch,
  page: number,
): KvView => ({
  ...{ shape, firstLeaf, tail, sinkBlock },
  leaves: [...leaves.slice(0, page - firstLeaf), leaf],
  windowPages: windowPages && [...windowPages.slice(0, page - firstLeaf), windowPage],
});
