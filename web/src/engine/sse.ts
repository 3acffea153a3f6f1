/** Server-sent events of a response. */

export interface ServerEvent {
  event: string;
  data: string;
}

/** Reads events until the response ends. Comments, such as heartbeats, are left out. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent, void, void> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let rest = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split('\n\n');
      rest = blocks.pop() ?? '';
      for (const block of blocks) {
        const event = parseEvent(block);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parseEvent(block: string): ServerEvent | undefined {
  const fields = block.split('\n').map(line => /^(\w+): ?(.*)$/.exec(line));
  const valuesOf = (name: string) => fields.filter(field => field?.[1] === name).map(field => field![2]);
  const data = valuesOf('data');
  return data.length > 0 ? { event: valuesOf('event')[0] ?? 'message', data: data.join('\n') } : undefined;
}
