/** The list of models, which most visits do not need. */
import { createLate } from './late.ts';
import { LatePart } from './late-part.tsx';

const list = createLate(() => import('./model-list.tsx'));

/** `onLoad` is called when a model has been found, and is being loaded. */
export const LateModels = (props: { isBusy: boolean; onLoad?(): void }) => (
  <LatePart part={list}>{({ ModelList }) => <ModelList {...props} />}</LatePart>
);
