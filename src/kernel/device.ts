/**
 * The device interface: the operations of a forward pass. The model is written once against it (model/forward.ts). `js`
 * is the reference implementation; the other devices are tested against it.
 *
 * Tensors, weights and blocks are opaque handles. Operations are recorded in order and may run later. `readRows` and
 * `readBlock` resolve once the operations recorded before them have run.
 */
import type { DeviceError } from '../util/errors.ts';
import type { PageLayout } from './page-layout.ts';
import type { KeyReader, ValueReader } from './page-readers.ts';
import type { WeightType } from './weights/types.ts';

/** A matrix of rows x cols, in the model file's type. */
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

/** Bytes of the cache. */
export interface Block {
  readonly bytes: number;
}

export interface Projection {
  weights: Weights;
  out: Tensor;
  bias?: Tensor;
  /** Add to `out` instead of overwriting it. */
  accumulate?: boolean;
}

/** Weights of [expert][output] rows, and a bias of the same shape. */
export type ExpertProjection = Pick<Projection, 'weights' | 'out' | 'bias'>;

/** How the experts of a row follow from the logits of its router, and what they weigh. */
export interface RoutingRule {
  /** The score of an expert: the softmax of the logits, or the sigmoid of its own. */
  readonly scores: 'softmax' | 'sigmoid';
  /** Weights are the scores of the chosen experts, divided by their sum or not, times `scale`. */
  readonly normalized: boolean;
  readonly scale: number;
  /**
   * Experts are in `count` groups of neighbours, of which the `used` best are chosen from: those with the largest sums of
   * their two best scores.
   */
  readonly groups?: { readonly count: number; readonly used: number };
}
/** Sums of scores are at least this before weights are divided by them. */
export const MIN_SCORE_SUM = 2 ** -14;

/** The experts of each row, best first, and their weights: both [rows][experts per row]. Ids are stored as floats. */
export interface Routing {
  readonly experts: Tensor;
  readonly weights: Tensor;
}

/**
 * The function of a gated feed-forward network (SwiGLU, GEGLU). `gelu` is the approximation by tanh. `clamped`: x
 * sigmoid(CLAMPED_SLOPE x), with the gate at most CLAMP, the up projection from -CLAMP to CLAMP, and 1 added to it.
 */
export type Activation = 'silu' | 'gelu' | 'clamped';
export const CLAMP = 7;
export const CLAMPED_SLOPE = 1.702;

/**
 * gelu(x) = x sigmoid(GELU_LINEAR x + GELU_CUBIC x^3): the approximation by tanh with its parts multiplied out, so that it
 * needs the same operations as silu(x) = x sigmoid(x).
 */
export const GELU_LINEAR = 2 * Math.sqrt(2 / Math.PI);
export const GELU_CUBIC = 0.044715 * GELU_LINEAR;

/** What devices and caches need from a codec: `encode` for js, `layout` for other devices, `decode` for caches. */
export interface PageCodec {
  readonly pageBytes: number;
  /** The byte layout of a page. */
  readonly layout: PageLayout;
  /** Encodes a page whose first token is at position `start`; returns the number of bytes used. */
  encode(x: Float32Array, tokens: number, page: Uint8Array, start: number): number;
  decode(page: Uint8Array, tokens: number, out: Float32Array, start: number): void;
  /**
   * The squared error of a page that encodes `x`, in the domain of the codes: of its tokens from `firstToken` on. Absent
   * if the encoder does not search for the nearest code; see `tracksError`.
   */
  squaredError?(x: Float32Array, tokens: number, page: Uint8Array, start: number, firstToken?: number): number;
  /** Counts a page's outliers; absent if the codec has no outlier lists. */
  outliers?(page: Uint8Array): Outliers;
  /** Whether a page of unknown origin can be read safely; absent if any bytes can. */
  isValid?(page: Uint8Array): boolean;
}

/** Counts of a page's outliers, in codecs that keep them in lists. */
export interface Outliers {
  listed: number;
  /** Without an entry, because the lists were full. */
  dropped: number;
}

/** One layer of the cache: its codecs, and the byte offsets of its pages in a leaf. */
export interface KvLayer {
  readonly keys: PageCodec & KeyReader;
  readonly values: PageCodec & ValueReader;
  /** Which of the leaf's parts it is: devices may store parts apart from each other. */
  readonly part: number;
  readonly keyOffset: number;
  readonly valueOffset: number;
  /** The layer sees only the last `window` tokens. Default: all. */
  readonly window?: number;
}

export interface AttendOptions {
  /** Factor of the scores. */
  scale: number;
  /** Scores s become softcap * tanh(s / softcap). Default: they do not. */
  softcap?: number;
  /** One logit per query head, which the softmax includes like the score of a token whose value is zero. Default: none. */
  sinkLogits?: Tensor;
}

export interface KvShape {
  readonly headDim: number;
  readonly kvHeads: number;
  readonly pageTokens: number;
  /** The first tokens, which stay in f16. */
  readonly sinks: number;
  /** Capacity of the tail, a ring buffer of whole blocks: token n is at index n % tailTokens. */
  readonly tailTokens: number;
  readonly layers: readonly KvLayer[];
}

/**
 * One sequence's cache. `sinkBlock` holds, for each layer, keys then values, each [kv head][sinks][headDim] in f16; a block
 * of the tail is the same with tailBlockTokens(pageTokens) (kernel/visibility.ts) instead of `sinks`.
 */
export interface KvView {
  readonly shape: KvShape;
  /** Sealed pages, oldest first, one block per leaf. */
  readonly leaves: readonly Block[];
  /** Page index of leaves[0]; above 0 after old leaves were dropped. */
  readonly firstLeaf: number;
  /**
   * The pages of layers with a window, if they have blocks of their own: one per leaf, undefined where no layer sees it
   * any more.
   */
  readonly windowPages?: readonly (Block | undefined)[];
  /** The blocks of the ring buffer, in order; undefined where there are no tokens. */
  readonly tail: readonly (Block | undefined)[];
  readonly sinkBlock: Block;
  /**
   * If set, sealing page n writes its squared errors to row n % rows: keys of layer l in column 2 l, values in 2 l + 1,
   * summed over heads and tokens, without sinks. They are in the domain of the codes; 0 for codecs without `tracksError`.
   */
  readonly errors?: Tensor;
}

/** The blocks of a sequence, and its shape if its codecs are going to be used. */
export type KvBlocks = Pick<KvView, 'leaves' | 'windowPages' | 'tail' | 'sinkBlock'> & { readonly shape?: KvShape };

export interface Device {
  readonly name: 'js' | 'wasm' | 'webgpu';
  readonly threads: number;
  /** What decides the last bits of its results: two devices with the same text compute the same bytes. */
  readonly arithmetic: string;
  readonly allocatedBytes: number;
  /** Resolves if the device is lost, with the error that all later calls fail with. */
  readonly lost?: Promise<DeviceError>;
  /**
   * Reserves memory for caches and tensors, on devices that must place weights elsewhere. Call it before loading
   * weights. Returns the number of bytes it could reserve.
   */
  reserve?(bytes: number): number;

  createTensor(rows: number, cols: number): Tensor;
  writeRows(tensor: Tensor, row: number, data: Float32Array): void;
  copyRows(from: Tensor, fromRow: number, to: Tensor, toRow: number, rows: number): void;
  /** Rows from `row` on, one by default, copied. */
  readRows(tensor: Tensor, row: number, count?: number): Promise<Float32Array<ArrayBuffer>>;
  /** Bytes that a matrix of this type takes: some types are widened. */
  matrixBytes(type: WeightType, rows: number, cols: number): number;
  /** Calls `fill` once for all rows, or several times for consecutive ranges of whole heads, each from byte `start` on. */
  loadWeights(
    type: WeightType,
    rows: number,
    cols: number,
    fill: (into: Uint8Array, start: number) => Promise<void>,
  ): Promise<Weights>;
  /** Compiles the kernels for these layers' codecs ahead of the first pass. */
  loadCodecs?(layers: readonly KvLayer[]): Promise<void>;
  /** A block of zeros. `partOffsets`: where its parts start; a device may store them apart from each other. */
  createBlock(bytes: number, partOffsets?: readonly number[]): Block;
  /**
   * Call it before the first use of these sequences' blocks, also before `writeBlock`. Waits for their memory on devices that allocate
   * asynchronously, and for their codecs' kernels on devices that compile them ahead; undefined if they have both already.
   * Rejects with a CapacityError; retrying is allowed.
   */
  ensureMemory?(views: readonly KvBlocks[]): Promise<void> | undefined;
  free(handle: Block | Tensor): void;
  /** Samples as engine/sample.ts does, without reading the logits back to the host. */
  sampleTokens?(logits: Tensor, requests: readonly SamplingRequest[]): SampledTokens;
  /** Copies a block's bytes. */
  readBlock(block: Block): Promise<Uint8Array<ArrayBuffer>>;
  writeBlock(block: Block, data: Uint8Array): void;
  /** Copies all bytes of a block to another of the same size and layers, on the device. `ensureMemory` may come later. */
  copyBlock(from: Block, to: Block): void;

  /**
   * Looks up rows of an embedding table, times `scale` (default 1). `ids` are token ids, or recent token handles of
   * `sampleTokens`.
   */
  embed(table: Weights, ids: ArrayLike<number>, out: Tensor, scale?: number): void;
  /**
   * out = x / rms(x) * weight, or added to `out`. A weight shorter than a row normalizes each part of that length
   * separately (per head).
   */
  rmsNorm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor, accumulate?: boolean): void;
  /**
   * out = x weights^T (+ bias), for several matrices that share x. The last `prefillRows` rows are prefill rows,
   * for which a device may use other kernels.
   */
  project(x: Tensor, rows: number, projections: readonly Projection[], prefillRows?: number): void;
  /**
   * Chooses the experts with the largest logits, the first of equal ones; or with the largest scores, if there are groups or
   * a `bias`, which is added to each expert's score for the choice alone.
   */
  route(logits: Tensor, rows: number, routing: Routing, rule: RoutingRule, bias?: Tensor): void;
  /**
   * Like `project`, with the weights of each row's experts: a matrix holds those of all experts one after the other, and so
   * does a bias. Row r and its i-th expert write row r * (experts per row) + i of `out`. `x` has one row per row, or one per
   * row and expert.
   */
  projectExperts(x: Tensor, rows: number, routing: Routing, projections: readonly ExpertProjection[]): void;
  /** out += the sum of the experts' outputs, times their weights. */
  addExperts(outputs: Tensor, rows: number, routing: Routing, out: Tensor): void;
  /** Rotates adjacent pairs of every head by the row's angles, [cos, sin] per pair. Other dims are unchanged. */
  rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void;
  /** gate = activation(gate) * up. The content of `up` is undefined afterwards. */
  gate(gate: Tensor, up: Tensor, rows: number, activation: Activation): void;

  /** x = softcap * tanh(x / softcap). */
  softcap(x: Tensor, rows: number, softcap: number): void;

  /** Writes rows of k and v to the tails (and sinks) of their sequences. */
  append(layer: number, k: Tensor, v: Tensor, runs: readonly KvRun[]): void;
  /**
   * Causal attention within the layer's window. Sealed pages are read from codes, the sinks and all later tokens from f16;
   * pages before the windows of a run's rows are not read.
   */
  attend(layer: number, q: Tensor, out: Tensor, runs: readonly KvRun[], options: AttendOptions): void;
  /** Whether it unpacks such pages to floats, because it has no kernel for their codes in this shape. */
  unpacks?(layer: KvLayer): boolean;
  /** Encodes one layer of pages, from the tails of their sequences into their blocks. */
  seal(layer: number, requests: readonly SealRequest[]): void;

  /** Compiles the kernels that the operations of `plan` need, without running the operations. */
  warmUp?(plan: () => void | Promise<void>): Promise<void>;

  dispose(): Promise<void>;
}

/** A page to seal: into the block that the view has for it. */
export interface SealRequest {
  view: KvView;
  page: number;
}

/** One row to sample: the settings of engine/sample.ts that need only the logits. */
export interface SamplingRequest {
  row: number;
  temperature: number;
  topK: number;
  topP: number;
  minP: number;
  /** A random number in [0, 1). */
  random: number;
}

export interface SampledTokens {
  /** Undefined for a row without a valid token. */
  ids: Promise<(number | undefined)[]>;
  /** Token handles: negative numbers that `embed` accepts before the ids are known to the host. */
  handles: number[];
}

/** Rows of one sequence that all read the same sealed pages. */
export interface KvRun {
  view: KvView;
  row: number;
  count: number;
  /** Position of the first row. */
  position: number;
  /** Number of pages that are read from codes. */
  sealedPages: number;
  /** Rows of a prompt, which may be computed in another way than decoded ones, however few they are. Default: false. */
  prefill?: boolean;
}
