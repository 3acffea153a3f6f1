/** What attention in JavaScript needs from a codec. */
export interface TransformedQuery {
  vector: Float32Array;
  /** Added to every dot product: the contribution of the mean that the codec subtracts. */
  constant: number;
}

export interface KeyReader {
  /** Keys are stored relative to their page's position: the query must be transformed for each page. */
  readonly pageRelative: boolean;
  transformQuery(query: Float32Array, head: number, pageStart: number): TransformedQuery;
  /** Dot products of a transformed query with the first `tokens` keys of one head of a page. */
  dotKeys(query: TransformedQuery, page: Uint8Array, head: number, tokens: number, out: Float32Array): void;
}

export interface ValueReader {
  /** Length of a sum of coded values; may exceed the head dimension. */
  readonly codedDim: number;
  /** sum += weights[t] * coded value[t], for the first `tokens` tokens of one head of a page. */
  accumulateValues(weights: Float32Array, page: Uint8Array, head: number, tokens: number, sum: Float32Array): void;
  /** Transforms a sum of coded values back to headDim; needs the sum of the weights, too. */
  transformOutput(sum: Float32Array, weightSum: number, head: number, out: Float32Array): void;
}
