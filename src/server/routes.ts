/** The table of routes. */
import { chatCompletions } from './chat-completions.ts';
import { completions } from './completions.ts';
import { embeddings, ollamaEmbed, ollamaEmbeddings } from './embeddings.ts';
import { health, live, metricsRoute, ready } from './health.ts';
import { countTokens, messages } from './messages.ts';
import { model, models } from './models.ts';
import { ollamaChat, ollamaGenerate } from './ollama.ts';
import { ollamaRunning, ollamaShow, ollamaTags, ollamaVersion } from './ollama-models.ts';
import { deleteResponse, responses, storedResponse } from './responses.ts';
import type { Route } from './route.ts';
import { slot, slots } from './slots.ts';
import { status } from './status.ts';
import { detokenize, tokenize } from './tokenize.ts';

export const routes: readonly Route[] = [
  chatCompletions,
  completions,
  responses,
  storedResponse,
  deleteResponse,
  messages,
  countTokens,
  embeddings,
  models,
  model,
  ollamaChat,
  ollamaGenerate,
  ollamaTags,
  ollamaShow,
  ollamaRunning,
  ollamaVersion,
  ollamaEmbed,
  ollamaEmbeddings,
  tokenize,
  detokenize,
  slots,
  slot,
  live,
  health,
  ready,
  status,
  metricsRoute,
];
