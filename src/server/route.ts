/** What a route is: one entry of the table from which the app and its OpenAPI document are made. */
import type { z } from 'zod';
import type { Tool } from '../engine/answer.ts';
import type { Backend } from './backend.ts';
import type { Jobs } from './jobs.ts';
import type { Limits } from './limits.ts';
import type { Metrics } from './metrics.ts';
import type { Tenant } from './tenants.ts';

/** A request that is being answered. */
export interface Exchange {
  readonly id: string;
  readonly request: Request;
  readonly tenant: Tenant;
  /** Aborts when the client leaves. */
  readonly signal: AbortSignal;
  readonly backend: Backend;
  readonly jobs: Jobs;
  readonly limits: Limits;
  readonly metrics: Metrics;
  /** Names of the model, the one that is shown first. */
  readonly names: readonly string[];
  /** Where slots are saved. */
  readonly slotPath?: string;
  /** A part of the path, such as `:id`, or a parameter of the query. */
  param(name: string): string;
  query(name: string): string | undefined;
  /** The name under which the model answers; a 404 if it is not served. */
  resolveModel(name: string | null | undefined): string;
  /** Keywords in the parameters of tools that calls need not satisfy, by their paths. Of strict tools, an InputError. */
  checkTools(tools: readonly Tool[]): readonly string[];
  /** Tells the client, in a header of the response, and the log what of a request is not followed. */
  notify(notice: string): void;
  json(body: object, status?: number): Response;
  /** Streams events that are formatted already. */
  stream(events: AsyncGenerator<string, void, void>): Promise<Response>;
}

export interface Route<T = unknown> {
  method: 'get' | 'post';
  path: string;
  summary: string;
  /** The body. Without, none is read. */
  schema?: (limits: Limits) => z.ZodType<T>;
  /** Needs no key. */
  isPublic?: boolean;
  /** May answer with events. */
  streams?: boolean;
  /** Errors in Anthropic's shape. */
  isAnthropic?: boolean;
  /** The field of the body that an option of the engine comes from, for messages: `tools[0].input_schema`. */
  fieldOf?(path: string, body: T): string;
  handle(exchange: Exchange, body: T): Promise<Response> | Response;
}
