/**
 * `kvasir/worker`: the engine in a Worker of a browser, and what the site has stored.
 */

export type { StoredFile } from '../platform/opfs.ts';
export type { RemoteService } from './connect.ts';
export { runWorker } from './run-worker.ts';
export type {
  AnswerOptions,
  ModelService,
  PageField,
  ServiceInfo,
  ServicePromptOptions,
  ServiceStats,
  SlotOption,
  SlotState,
  TokenizeOptions,
} from './service.ts';
export { startWorker, type WorkerModel, type WorkerOptions } from './start-worker.ts';
export { deleteStored, listStored, openStored, type StorageUse } from './stored.ts';
