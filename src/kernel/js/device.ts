/** The js device: plain float32 loops over dequantized weights. Slow; the reference for every operation. */

import { type AttentionState, attentionOutput, emptyState, mergeStates } from '../attention-state.ts';
import {
  type Activation,
  type AttendOptions,
  type Block,
  CLAMP,
  CLAMPED_SLOPE,
  type Device,
  GELU_CUBIC,
  GELU_LINEAR,
  type KvRun,
  type KvShape,
  type KvView,
  type Projection,
  type SealRequest,
  type Tensor,
} from '../device.ts';
import { fromF16, toF16 } from '../float.ts';
import { firstCodedRow, firstVisible, pageBlock, skippedTokens, tailBlockTokens, visibleSinks } from '../visibility.ts';
import { dequantize } from '../weights/dequantize.ts';
import { type WeightType, weightBytes } from '../weights/types.ts';
import { attendHead, capped, type Segment } from './attend.ts';
import { addExperts, projectExperts, route } from './experts.ts';
import { floats, type JsBlock, type JsTensor, type JsWeights, matrix, raw } from './handles.ts';

export function createJsDevice(): Device {
  let bytes = 0;
  return {
    name: 'js',
    threads: 1,
    arithmetic: 'js',
    get allocatedBytes() {
      return bytes;
    },
    createTensor(rows, cols): JsTensor {
      bytes += 4 * rows * cols;
      return { rows, cols, data: new Float32Array(rows * cols) };
    },
    writeRows: (tensor, row, data) => floats(tensor).set(data, row * tensor.cols),
    copyRows(from, fromRow, to, toRow, rows) {
      floats(to).set(floats(from).subarray(fromRow * from.cols, (fromRow + rows) * from.cols), toRow * to.cols);
    },
    readRows: async (tensor, row, count = 1) => floats(tensor).slice(row * tensor.cols, (row + count) * tensor.cols),
    matrixBytes: (_type, rows, cols) => 4 * rows * cols,
    async loadWeights(type: WeightType, rows: number, cols: number, fill): Promise<JsWeights> {
      const packed = new Uint8Array(weightBytes(type, rows * cols));
      await fill(packed, 0);
      const data = new Float32Array(rows * cols);
      dequantize(type, packed, data);
      bytes += data.byteLength;
      return { type, rows, cols, data };
    },
    createBlock(size): JsBlock {
      bytes += size;
      return { bytes: size, data: new Uint8Array(size) };
    },
    free(handle) {
      bytes -= 'bytes' in handle ? handle.bytes : 4 * handle.rows * handle.cols;
    },
    readBlock: async block => raw(block).slice(),
    writeBlock: (block, data) => raw(block).set(data),
    copyBlock: (from, to) => raw(to).set(raw(from)),
    embed(table, ids, out, scale = 1) {
      for (let r = 0; r < ids.length; r++) {
        const row = matrix(table).subarray(ids[r] * table.cols, (ids[r] + 1) * table.cols);
        floats(out).set(scale === 1 ? row : row.map(x => x * scale), r * table.cols);
      }
    },
    rmsNorm,
    project,
    route,
    projectExperts,
    addExperts,
    rope,
    gate(gate, up, rows, activation) {
      const [g, u, gated] = [floats(gate), floats(up), gates[activation]];
      for (let i = 0; i < rows * gate.cols; i++) g[i] = gated(g[i], u[i]);
    },
    softcap(x, rows, softcap) {
      const data = floats(x);
      for (let i = 0; i < rows * x.cols; i++) data[i] = capped(data[i], softcap);
    },
    append(layer, k, v, runs) {
      for (const run of runs) append(layer, k, v, run);
    },
    attend(layer, q, out, runs, options) {
      for (const run of runs) attend(layer, q, out, run, options);
    },
    seal(layer, requests) {
      for (const request of requests) seal(layer, request);
    },
    async dispose() {
      bytes = 0;
    },
  };
}

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x));

const gates: Record<Activation, (gate: number, up: number) => number> = {
  silu: (x, up) => x * sigmoid(x) * up,
  gelu: (x, up) => x * sigmoid(GELU_LINEAR * x + GELU_CUBIC * x ** 3) * up,
  clamped(gate, up) {
    const x = Math.min(gate, CLAMP);
    return x * sigmoid(CLAMPED_SLOPE * x) * (Math.max(-CLAMP, Math.min(CLAMP, up)) + 1);
  },
};

function rmsNorm(x: Tensor, rows: number, weight: Tensor, eps: number, out: Tensor, accumulate = false): void {
  const [from, w, to] = [floats(x), floats(weight), floats(out)];
  const n = weight.cols;
  for (let start = 0; start < rows * x.cols; start += n) {
    let sum = 0;
    for (let i = 0; i < n; i++) sum += from[start + i] ** 2;
    const scale = 1 / Math.sqrt(sum / n + eps);
    for (let i = 0; i < n; i++) to[start + i] = (accumulate ? to[start + i] : 0) + from[start + i] * scale * w[i];
  }
}

function project(x: Tensor, rows: number, projections: readonly Projection[]): void {
  const from = floats(x);
  for (const { weights, out, bias, accumulate } of projections) {
    const [w, to] = [matrix(weights), floats(out)];
    for (let r = 0; r < rows; r++) {
      for (let o = 0; o < weights.rows; o++) {
        let sum = 0;
        for (let i = 0, at = r * weights.cols, wAt = o * weights.cols; i < weights.cols; i++)
          sum += from[at + i] * w[wAt + i];
        if (bias) sum += floats(bias)[o];
        to[r * weights.rows + o] = accumulate ? to[r * weights.rows + o] + sum : sum;
      }
    }
  }
}

function rope(x: Tensor, rows: number, headDim: number, angles: Tensor): void {
  const [data, cosSin] = [floats(x), floats(angles)];
  for (let r = 0; r < rows; r++) {
    for (let head = 0; head < x.cols; head += headDim) {
      for (let i = 0; i < angles.cols; i += 2) {
        const offset = r * x.cols + head + i;
        const [cos, sin] = [cosSin[r * angles.cols + i], cosSin[r * angles.cols + i + 1]];
        const [a, b] = [data[offset], data[offset + 1]];
        data[offset] = a * cos - b * sin;
        data[offset + 1] = a * sin + b * cos;
      }
    }
  }
}

/** The f16 vector of a token: keys are side 0, values side 1. */
type F16Vectors = (side: 0 | 1, head: number, token: number) => Uint16Array;

/** One layer of a ring of blocks, each [side][kv head][tokens][headDim]. */
function f16Vectors(
  blocks: readonly (Block | undefined)[],
  tokens: number,
  { kvHeads, headDim }: KvShape,
  layer: number,
): F16Vectors {
  const words = blocks.map(block => block && new Uint16Array(raw(block).buffer));
  return (side, head, token) => {
    const index = token % (blocks.length * tokens);
    const row = ((2 * layer + side) * kvHeads + head) * tokens + (index % tokens);
    return words[Math.floor(index / tokens)]!.subarray(row * headDim, (row + 1) * headDim);
  };
}

const tailVectors = ({ tail, shape }: KvView, layer: number): F16Vectors =>
  f16Vectors(tail, tailBlockTokens(shape.pageTokens), shape, layer);

const sinkVectors = ({ sinkBlock, shape }: KvView, layer: number): F16Vectors =>
  f16Vectors([sinkBlock], shape.sinks, shape, layer);

function append(layer: number, k: Tensor, v: Tensor, { view, row, count, position }: KvRun): void {
  const { headDim, kvHeads, sinks } = view.shape;
  const [tail, sink] = [tailVectors(view, layer), sinkVectors(view, layer)];
  [k, v].forEach((tensor, i) => {
    const side = i as 0 | 1;
    const data = floats(tensor);
    for (let r = 0; r < count; r++) {
      const n = position + r;
      for (let head = 0; head < kvHeads; head++) {
        const offset = (row + r) * tensor.cols + head * headDim;
        const vector = new Uint16Array(headDim);
        for (let j = 0; j < headDim; j++) vector[j] = toF16(data[offset + j]);
        tail(side, head, n).set(vector);
        if (n < sinks) sink(side, head, n).set(vector);
      }
    }
  });
}

function attend(layer: number, q: Tensor, out: Tensor, run: KvRun, options: AttendOptions): void {
  const { view } = run;
  const { headDim, kvHeads, pageTokens } = view.shape;
  const { keys, values, keyOffset, valueOffset, window } = view.shape.layers[layer];
  const heads = q.cols / headDim;
  const sealedTokens = run.sealedPages * pageTokens;
  const sinkCount = visibleSinks(run.sealedPages, view.shape);
  const [tail, sinks] = [tailVectors(view, layer), sinkVectors(view, layer)];
  const segments: Segment[] = [];
  const firstPage = Math.floor(firstVisible(run.position, window) / pageTokens);
  for (let page = Math.max(view.firstLeaf, firstPage); page < run.sealedPages; page++) {
    const leaf = raw(pageBlock(view, layer, page));
    const start = page * pageTokens;
    segments.push({
      keys,
      values,
      keyPage: leaf.subarray(keyOffset, keyOffset + keys.pageBytes),
      valuePage: leaf.subarray(valueOffset, valueOffset + values.pageBytes),
      start,
      tokens: pageTokens,
      skip: Math.min(pageTokens, skippedTokens(start, run.sealedPages, view.shape)),
    });
  }
  for (let r = 0; r < run.count; r++) {
    const position = run.position + r;
    const first = firstVisible(position, window);
    const visible = segments.map(segment => ({ ...segment, skip: Math.max(segment.skip, first - segment.start) }));
    for (let h = 0; h < heads; h++) {
      const offset = (run.row + r) * q.cols + h * headDim;
      const query = floats(q).subarray(offset, offset + headDim);
      const head = Math.floor((h * kvHeads) / heads);
      const total = emptyState(headDim);
      const addF16 = (vectors: F16Vectors, from: number, to: number) =>
        mergeStates(total, attendF16(query, vectors, head, Math.max(from, first), to, options));
      addF16(sinks, 0, sinkCount);
      mergeStates(total, attendHead(query, visible, head, { headDim, kvHeads, ...options }));
      addF16(tail, sealedTokens, position + 1);
      if (options.sinkLogits) mergeStates(total, { ...emptyState(headDim), m: floats(options.sinkLogits)[h], l: 1 });
      floats(out).set(attentionOutput(total), offset);
    }
  }
}

/** Attention over the f16 tokens `from` to `to` of the tail or the sinks. */
function attendF16(
  query: Float32Array,
  vectors: F16Vectors,
  head: number,
  from: number,
  to: number,
  { scale, softcap }: AttendOptions,
): AttentionState {
  const headDim = query.length;
  const state = emptyState(headDim);
  const scores = new Float32Array(Math.max(0, to - from));
  for (let t = 0; t < scores.length; t++) {
    const key = vectors(0, head, from + t);
    let dot = 0;
    for (let j = 0; j < headDim; j++) dot += query[j] * fromF16(key[j]);
    scores[t] = capped(dot * scale, softcap);
    state.m = Math.max(state.m, scores[t]);
  }
  for (let t = 0; t < scores.length; t++) {
    const weight = Math.exp(scores[t] - state.m);
    const value = vectors(1, head, from + t);
    state.l += weight;
    for (let j = 0; j < headDim; j++) state.o[j] += weight * fromF16(value[j]);
  }
  return state;
}

function seal(layer: number, { view, page }: SealRequest): void {
  const { headDim, kvHeads, pageTokens } = view.shape;
  const { keys, values, keyOffset, valueOffset } = view.shape.layers[layer];
  const start = page * pageTokens;
  const first = firstCodedRow(view.shape, page);
  const tail = tailVectors(view, layer);
  for (const [codec, offset, side] of [
    [keys, keyOffset, 0],
    [values, valueOffset, 1],
  ] as const) {
    const x = new Float32Array(pageTokens * kvHeads * headDim);
    for (let t = 0; t < pageTokens; t++) {
      for (let head = 0; head < kvHeads; head++) {
        const vector = tail(side, head, start + Math.max(t, first));
        for (let j = 0; j < headDim; j++) x[(t * kvHeads + head) * headDim + j] = fromF16(vector[j]);
      }
    }
    const bytes = raw(pageBlock(view, layer, page)).subarray(offset, offset + codec.pageBytes);
    codec.encode(x, pageTokens, bytes, start);
    if (!view.errors || !codec.squaredError) continue;
    const { rows, cols } = view.errors;
    floats(view.errors)[(page % rows) * cols + 2 * layer + side] = codec.squaredError(
      x,
      pageTokens,
      bytes,
      start,
      first,
    );
  }
}
