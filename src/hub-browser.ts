/** Takes the place of hub.ts in browsers, which have no cache of models on disk. */
import { UnsupportedError } from './util/errors.ts';

export { parseModelName, parseQuant } from './hub/name.ts';

type Hub = typeof import('./hub.ts');

function needsNode(): never {
  throw new UnsupportedError(
    'Models of the hub are cached on disk, in Node. In a browser, load a URL, a File or a Blob.',
  );
}
const rejects = async (): Promise<never> => needsNode();

export const cacheDir: Hub['cacheDir'] = needsNode;
export const listModels: Hub['listModels'] = rejects;
export const planRemoval: Hub['planRemoval'] = rejects;
export const pull: Hub['pull'] = rejects;
export const removeModel: Hub['removeModel'] = rejects;
export const resolveModel: Hub['resolveModel'] = rejects;
