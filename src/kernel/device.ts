/**
 * What a device can do: the operations of a forward pass over handles that only the device can look into. The model
 * is written once against this (model/forward.ts); `js` is the definition, and every other device is tested against it.
 *
 * Handles are opaque outside of their device. Operations are recorded in order and nothing here waits: a device may do
 * its work later. `read` and `readBlock` promise what the operations recorded before them make of it.
 */
import type { DeviceError } from '../errors.ts';
import type { Fragment } from './fragment.ts';
import type { KeyReader, ValueReader } from './js/attend.ts';
import type { WeightType } from './weights/types.ts';

/** A matrix of rows x cols, as it came from the model file. */
export interface Weights {
  readonly type: WeightType;
  readonly rows: number;
  readonly cols: number;
}

/** Rows of f32 activations. */
export interface Tensor {
  readonly rows: number;
  readonly cols: number;
}

/** Raw bytes of the cache. */
export interface Block {
  readonly bytes: number;
}

export interface Projection {
  weights: Weights;
  out: Tensor;
  bias?: Tensor;
  /** Add to what `out` holds. */
  add?: boolean;
}

/** What a device needs of a codec: the reference for js, a description of the bytes for the others. */
export interface PageCodec {
  readonly pageBytes: number;
  readonly fragment: Fragment;
  encode(x: Float32Array, tokens: number, page: Uint8Array, start: number): number;
  outliers?(page: Uint8Array): Outliers;
}

/** Values that a codec keeps in lists beside its codes: those with an entry, and those for which there was no room. */
export interface Outliers {
  listed: number;
  dropped: number;
}

/** One layer of the cache: its codecs, and where its pages lie in a leaf. */
export interface KvLayer {
  readonly keys: PageCodec & KeyReader;
  readonly values: PageCodec & ValueReader;
  readonly keyOffset: number;
  readonly valueOffset: number;
}

export interface KvShape {
  readonly headDim: number;
  readonly kvHeads: number;
  readonly pageTokens: number;
  /** First tokens that stay f16. */
  readonly sinks: number;
  /** Room of the tail: token n lies at n modulo this. */
  readonly tailTokens: number;
  readonly layers: readonly KvLayer[];
}

/**
 * One sequence's cache as a device sees it. `tail` holds, for each layer, keys then values, each
 * [kv head][tailTokens][headDim] in f16; `sinkBlock` the same with `sinks` in place of tailTokens.
 */
export interface KvView {
  readonly shape: KvShape;
  /** Sealed pages, oldest first, one block a leaf. */
  readonly leaves: readonly Block[];
  /** Changes whenever `leaves` does: a device may keep what it derived from them until then. */
  readonly version: number;
  /** Index of leaves[0]; more than 0 once old leaves were dropped. */
  readonly firstLeaf: number;
  readonly tail: Block;
  readonly sinkBlock: Block;
}

export interface Device {
  readonly name: 'js' | 'wasm' | 'webgpu';
  readonly threads: number;
  /** Bytes held now. */
  readonly bytes: number;
  /** Resolves if the device goes away by itself, with the error that every call fails with from then on. */
  readonly lost?: Promise<DeviceError>;
  /**
   * Keeps memory for caches and tensors clear of weights, where a device must place them apart; called before weights
   * are loaded. Returns how many of the bytes it can keep.
   */
  reserve?(bytes: number): number;

  tensor(rows: number, cols: number): Tensor;
  write(tensor: Tensor, row: number, data: Float32Array): void;
  copy(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void;
  /** One row, copied. */
  read(tensor: Tensor, row: number): Promise<Float32Array<ArrayBuffer>>;
  /** `fill` is asked for the bytes of all rows, or for those of a few whole heads after the other, from `start` on. */
  loadWeights(
    type: WeightType,
    rows: number,
    cols: number,
    fill: (into: Uint8Array, start: number) => Promise<void>,
  ): Promise<Weights>;
  /** Makes what it needs to read and seal pages of these layers: else the first pass does, which takes long. */
  loadCodecs?(layers: readonly KvLayer[]): Promise<void>;
  /** Zeros. `cuts`: where the bytes of another layer begin; a device may keep each layer's bytes of all blocks together. */
  block(bytes: number, cuts?: readonly number[]): Block;
  /**
   * Before blocks of these sequences are first used, where a device needs to wait for their memory; undefined if they have
   * it. Fails with a CapacityError, and may be tried again.
   */
  ready?(views: readonly KvView[]): Promise<void> | undefined;
  free(handle: Block | Tensor): void;
  /**
   * The tokens that engine/sample.ts would choose of some rows of logits, where a device can tell without handing out
   * the rows.
   */
  choose?(logits: Tensor, choices: readonly Choice[]): Chosen;
  /** The bytes of a block, copied out or in: to move leaves to other tiers. */
  readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>>;
  writeBlock(block: Block, data: Uint8Array): void;

  /** Rows of an embedding table, by their ids, or by the names of tokens that the device chose not long ago. */
  embed(table: Weights, ids: ArrayLike<number>, out: Tensor): void;
  /** out = x / rms(x) * weight; a weight shorter than the row norms each such part of it apart (heads). */
  norm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor): void;
  /**
   * out = x weights^T (+ bias), for several matrices that share x. The last `prompts` of the rows belong to prompts: a
   * device may have a way of its own for these, however few they are.
   */
  project(x: Tensor, rows: number, projections: readonly Projection[], prompts?: number): void;
  /** Turns adjacent pairs of every head by the row's angles: [cos, sin] a pair. Dims past them are left alone. */
  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void;
  /** gate = silu(gate) * up. What `up` holds afterwards is open. */
  swiglu(gate: Tensor, up: Tensor, rows: number): void;

  /** Rows of k and v into the tails (and the sinks) of their sequences. */
  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void;
  /** Causal attention. Sealed pages are read from codes, everything from there on (and the sinks) from f16. */
  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], scale: number): void;
  /** Codes page `page` of the tail into the layer's place in a leaf. */
  seal(view: KvView, layer: number, page: number, leaf: Block): void;

  /** Compiles the kernels that the operations of `plan` need, before the first of them is run. They do nothing else. */
  warmUp?(plan: () => void | Promise<void>): Promise<void>;

  dispose(): Promise<void>;
}

/** How a token is chosen: the settings of engine/sample.ts that need nothing but the logits. */
export interface Choice {
  row: number;
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  /** In [0, 1), drawn beforehand. */
  random: number;
}

export interface Chosen {
  /** Undefined for a row of which none can be chosen. */
  ids: Promise<(number | undefined)[]>;
  /** What `embed` knows them by before anybody else knows which they are: below zero. */
  names: number[];
}

/** Rows of one sequence that all read the same sealed pages. */
export interface KvRun {
  view: KvView;
  row: number;
  count: number;
  /** Of the first row. */
  position: number;
  /** Pages that are read from codes. */
  sealed: number;
}
