/** The table of routes. */
import { chatCompletions } from './chat-completions.ts';
import { health, metricsRoute, ready } from './health.ts';
import { model, models } from './models.ts';
import type { Route } from './route.ts';

export const routes: readonly Route[] = [chatCompletions as Route, models, model, health, ready, metricsRoute];
