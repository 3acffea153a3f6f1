/** The engine behind a server: it may be loading, or be restarted after a crash. */
import type { ModelService } from '../worker/service.ts';

export type BackendState = 'loading' | 'ready' | 'restarting' | 'failed';

export interface Backend {
  readonly state: BackendState;
  /** The last one that was ready. Use it while the state is `ready` only. */
  readonly service?: ModelService;
  /** Why it is restarting or has failed. */
  readonly reason?: string;
  /** How many times it was restarted. */
  readonly restarts: number;
}

/** A service of this process as a backend. */
export const readyBackend = (service: ModelService): Backend => ({ state: 'ready', service, restarts: 0 });
