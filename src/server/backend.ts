/** The engine behind a server: it may be loading, or be restarted after a crash. */
import { type EngineProcessOptions, type EngineState, startEngineProcess } from '../worker/engine-process.ts';
import type { ModelService, ServiceInfo } from '../worker/service.ts';

export interface Backend {
  readonly state: EngineState;
  /** While the state is `ready`. */
  readonly service?: ModelService;
  /** Of the model, once it has been loaded. */
  readonly info?: ServiceInfo;
  /** Why it is restarting or has failed. */
  readonly reason?: string;
  /** How many times it was restarted. */
  readonly restarts: number;
}

/** A service of this process as a backend. */
export const readyBackend = (service: ModelService): Backend => ({
  ...{ state: 'ready', service, restarts: 0 },
  info: service.info,
});

export interface ProcessBackend extends Backend {
  /** Waits until the engine is ready; rejects if it cannot be started. */
  ready(): Promise<ModelService>;
  close(): Promise<void>;
}

/** An engine in a process of its own as a backend. */
export function startBackend({ onEvent, ...options }: EngineProcessOptions): ProcessBackend {
  let info: ServiceInfo | undefined;
  let reason: string | undefined;
  const engine = startEngineProcess({
    ...options,
    onEvent(event) {
      if (event.type === 'state') reason = event.error?.message;
      onEvent?.(event);
    },
  });
  return {
    get state() {
      return engine.state;
    },
    get service() {
      info ??= engine.service?.info;
      return engine.service;
    },
    get info() {
      info ??= engine.service?.info;
      return info;
    },
    get reason() {
      return reason;
    },
    get restarts() {
      return engine.restarts;
    },
    ready: engine.ready,
    // What runs has been drained or cancelled before; the tiers get what they lack.
    close: () => engine.close(5000),
  };
}
