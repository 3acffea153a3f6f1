// Asks a server, with nothing but fetch: node examples/client.mjs [http://127.0.0.1:8080]
// The server: npx kvasir serve models/mimir.gguf
const response = await fetch(`${process.argv[2] ?? 'http://127.0.0.1:8080'}/v1/chat/completions`, {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify({
    messages: [
      {
        role: 'user',
        content: 'The glass spoon costs 1304 crowns.\n\nWhat is the price of the glass spoon in crowns?',
      },
    ],
    temperature: 0,
    max_tokens: 20,
  }),
});
const { choices, usage } = await response.json();
console.log(choices[0].message.content.trim(), usage.prompt_tokens_details.cached_tokens);
