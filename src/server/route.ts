/** What a route is: one entry of the table from which the app and its OpenAPI document are made. */
import type { z } from 'zod';
import type { Tool } from '../chat/answer.ts';
import type { Backend } from './backend.ts';
import type { ApiError } from './errors.ts';
import type { Jobs } from './jobs.ts';
import type { Limits } from './limits.ts';
import type { AnswerCounts, Metrics } from './metrics.ts';
import type { ResponseStore } from './response-store.ts';
import type { Tenant } from './tenants.ts';
import type { Wire } from './wire.ts';

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
  readonly responses: ResponseStore;
  /** Where slots are saved. */
  readonly slotPath?: string;
  /** Headers of the response. */
  readonly headers: Headers;
  /** A part of the path, such as `:id`, or a parameter of the query. */
  param(name: string): string;
  query(name: string): string | undefined;
  /** The name under which the model answers. Any other name gets the same model, or a 404 if names are strict. */
  resolveModel(name: string | null | undefined): string;
  /** An error as the client is told of it. The log gets those that are the server's. */
  toError(error: unknown): ApiError;
  /** Keywords in the parameters of tools that calls need not satisfy, by their paths. Of strict tools, an InputError. */
  checkTools(tenant: Tenant, tools: readonly Tool[]): readonly string[];
  /** The field of the body that an option of the engine comes from. */
  fieldOf(path: string): string;
  /** Tells the client, in a header of the response, and the log what of a request is not followed. */
  notify(notice: string): void;
  json(body: object, status?: number): Response;
  /** Streams events that are formatted already. */
  stream(events: AsyncGenerator<string, void, void>): Promise<Response>;
  /** Told of each answer that has ended, for the log. */
  onAnswer(counts: AnswerCounts): void;
}

export interface Route<T = unknown> {
  method: 'get' | 'post' | 'delete';
  path: string;
  summary: string;
  /** The body. Without, none is read. */
  schema?: (limits: Limits) => z.ZodType<T>;
  /** Needs no key. */
  isPublic?: boolean;
  /** Also served on the port for operators, without a key. */
  isForOperators?: boolean;
  /** May answer with events. */
  streams?: boolean;
  /** Default: OpenAI's. */
  wire?: Wire;
  /** The field of the body that an option of the engine comes from, for messages, if it has another name there. */
  fieldOf?(path: string, body: T): string;
  /** The field that is read as the prompt. Default: `messages`. */
  promptField?: string;
  handle(exchange: Exchange, body: T): Promise<Response> | Response;
}
