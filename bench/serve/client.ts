/** One streamed request to an OpenAI-compatible server, with the times of its tokens. */

export interface Target {
  /** Without /v1. */
  url: string;
  model: string;
  apiKey?: string;
}

export interface Message {
  role: 'system' | 'user' | 'assistant';
  content: string;
}

export interface Answer {
  text: string;
  /** Milliseconds to the first token, between two tokens, and to the end. */
  firstMs: number;
  gapsMs: number[];
  totalMs: number;
  promptTokens: number;
  cachedTokens: number;
  outputTokens: number;
}

/** The `data` of server-sent events, in order. Comments (heartbeats) and other fields are skipped. */
export async function* readEvents(body: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = '';
  let data: string[] = [];
  for await (const bytes of body) {
    rest += decoder.decode(bytes, { stream: true });
    // A carriage return at the end may be the first half of a line's end.
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop() ?? '';
    for (const line of lines) {
      if (line === '') {
        if (data.length > 0) yield data.join('\n');
        data = [];
      } else if (line.startsWith('data:')) data.push(line.slice(5).replace(/^ /, ''));
    }
  }
}

/** The name of the only model, or of the first. */
export async function firstModel(url: string, apiKey?: string): Promise<string> {
  const response = await fetch(`${url}/v1/models`, { headers: headersOf(apiKey) });
  if (!response.ok) throw new Error(`${url}/v1/models answers ${response.status}: ${await response.text()}`);
  const { data } = (await response.json()) as { data: { id: string }[] };
  return data[0].id;
}

const headersOf = (apiKey?: string): Record<string, string> => (apiKey ? { authorization: `Bearer ${apiKey}` } : {});

export interface AskOptions {
  maxTokens: number;
  signal: AbortSignal;
  onFirstToken?(ms: number): void;
}

/** Throws if the server answers an error, or the stream ends before its last event. */
export async function ask(
  { url, model, apiKey }: Target,
  messages: readonly Message[],
  { maxTokens, signal, onFirstToken }: AskOptions,
): Promise<Answer> {
  const started = performance.now();
  const response = await fetch(`${url}/v1/chat/completions`, {
    method: 'POST',
    headers: { ...headersOf(apiKey), 'content-type': 'application/json' },
    // Answers of a fixed length: servers are compared on the same work.
    body: JSON.stringify({
      model,
      messages,
      max_tokens: maxTokens,
      temperature: 0,
      ignore_eos: true,
      stream: true,
      stream_options: { include_usage: true },
    }),
    signal,
  });
  if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
  const answer = { text: '', firstMs: 0, gapsMs: [] as number[], promptTokens: 0, cachedTokens: 0, outputTokens: 0 };
  let [last, done] = [started, false];
  for await (const data of readEvents(response.body)) {
    if (data === '[DONE]') {
      done = true;
      continue;
    }
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.code ?? event.error.type ?? 'error event');
    const delta = event.choices?.[0]?.delta;
    if (delta?.content || delta?.reasoning_content) {
      const now = performance.now();
      if (answer.firstMs === 0) {
        answer.firstMs = now - started;
        onFirstToken?.(answer.firstMs);
      } else answer.gapsMs.push(now - last);
      last = now;
      answer.text += delta.content ?? '';
    }
    if (event.usage) {
      answer.promptTokens = event.usage.prompt_tokens;
      answer.cachedTokens = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
      answer.outputTokens = event.usage.completion_tokens;
    }
  }
  if (!done) throw new Error('stream ended early');
  return { ...answer, totalMs: performance.now() - started };
}
