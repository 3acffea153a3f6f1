/** The table of routes. */
import { chatCompletions } from './chat-completions.ts';
import { completions } from './completions.ts';
import { health, metricsRoute, ready } from './health.ts';
import { countTokens, messages } from './messages.ts';
import { model, models } from './models.ts';
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
  models,
  model,
  tokenize,
  detokenize,
  slots,
  slot,
  health,
  ready,
  status,
  metricsRoute,
];
