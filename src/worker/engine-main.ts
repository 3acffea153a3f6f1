/** The program of the engine process: serves the model that its parent names. It ends with its parent. */
import { type LoadOptions, loadModel } from '../api/model.ts';
import { createService } from './create-service.ts';
import { limitHeapGrowth } from './heap-growth.ts';
import { hostService } from './host.ts';
import { portToParent } from './process-port.ts';

/** What the parent asks for. */
export interface EngineSource {
  model: string;
  loadOptions: Omit<LoadOptions, 'signal' | 'onProgress'>;
}

limitHeapGrowth();
process.on('disconnect', () => process.exit());
// A terminal or a service manager signals the whole group: the parent decides when this process ends.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {});

hostService(portToParent(), async (source, progress) => {
  const { model, loadOptions } = source as EngineSource;
  return createService(await loadModel(model, { ...loadOptions, ...progress }));
});
