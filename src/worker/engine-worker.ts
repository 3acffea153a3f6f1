/** The program of a Worker that runs the engine: serves the model that its page names (start-worker.ts). */

import { loadModel } from '../api/model.ts';
import type { ModelInput } from '../engine/engine.ts';
import { createService } from './create-service.ts';
import { hostService } from './host.ts';
import { checkStorable, storeModel } from './model-store.ts';
import { type MessageTarget, messagePort } from './port.ts';
import type { WorkerSource } from './start-worker.ts';

hostService(messagePort(globalThis as unknown as MessageTarget), async (source, progress) => {
  const { model, loadOptions, store, sha256 } = source as WorkerSource;
  let input = model as ModelInput;
  if (store) {
    checkStorable(model);
    input = await storeModel(model, { sha256, ...progress });
  }
  return createService(await loadModel(input, { ...loadOptions, ...progress }));
});
