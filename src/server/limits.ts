/** What a request may ask for. */
export interface Limits {
  /** Bytes of a request's body. */
  body: number;
  /** Nesting of a body's JSON. */
  depth: number;
  /** Values in a body's JSON. */
  values: number;
  messages: number;
  tools: number;
  /** Answers per request: `n`, times the prompts. */
  choices: number;
  /** Stop strings, and characters of each. */
  stops: number;
  stopLength: number;
  /** Tokens of an answer: the default, and the cap. */
  output: number;
  /** Requests that wait beside those that run; further ones get a 429. */
  queue: number;
  /** Responses that are stored per tenant, and characters of their conversations; the oldest are dropped. */
  storedResponses: number;
  storedCharacters: number;
  /** Milliseconds that a request may take. */
  time: number;
}

export const defaultLimits: Limits = {
  body: 32 * 2 ** 20,
  depth: 64,
  values: 250_000,
  messages: 10_000,
  tools: 128,
  choices: 16,
  stops: 16,
  stopLength: 1000,
  output: 8192,
  queue: 512,
  storedResponses: 1000,
  storedCharacters: 64 * 2 ** 20,
  time: 600_000,
};
