/** The table of routes. */
import { chatCompletions } from './chat-completions.ts';
import { completions } from './completions.ts';
import { health, live, metricsRoute, ready } from './health.ts';
import { countTokens, messages } from './messages.ts';
import { model, models } from './models.ts';
import type { Route } from './route.ts';
import { slot, slots } from './slots.ts';
import { status } from './status.ts';
import { detokenize, tokenize } from './tokenize.ts';

export const routes: readonly Route[] = [
  chatCompletions,
  completions,
  messages,
  countTokens,
  models,
  model,
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
