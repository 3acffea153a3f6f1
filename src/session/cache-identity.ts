/** The identity of a model's cache: what the bytes of its pages depend on. */

import { FORMAT_VERSION } from '../codec/page-fields.ts';
import type { Engine } from '../engine/engine.ts';
import type { Plan } from '../plan/plan.ts';
import { hashValue } from '../util/hash-value.ts';
import type { SessionIdentity } from './session-manifest.ts';

const identities = new WeakMap<Plan, Promise<SessionIdentity>>();

/** What the bytes of a cache depend on. Computed once: a model's file may have to be hashed. */
export function cacheIdentity(engine: Engine, plan: Plan): Promise<SessionIdentity> {
  const known = identities.get(plan) ?? computeIdentity(engine, plan);
  identities.set(plan, known);
  known.catch(() => identities.delete(plan));
  return known;
}

/** What follows from the codecs alone. */
export const codecIdentity = ({ codecs }: Plan): Pick<SessionIdentity, 'tables' | 'arithmetic' | 'format'> => ({
  // A layout has all that a device must know to read a page, the learned tables included.
  tables: hashValue(codecs.map(({ keys, values }) => [keys.layout, values.layout])),
  // Pages are valid on every device: a session may move.
  arithmetic: '',
  format: FORMAT_VERSION,
});

/** A hash of the codec of every layer. */
export const codecsHash = ({ codecs }: Plan): string =>
  hashValue(codecs.map(({ keys, values }) => `${keys.spec}/${values.spec}`));

async function computeIdentity({ fingerprint, tokenizer, rope, config }: Engine, plan: Plan): Promise<SessionIdentity> {
  const { spec, window, pageTokens } = plan;
  const tokens = Array.from({ length: config.vocab }, (_, id) => tokenizer.tokenText(id));
  return {
    model: await fingerprint(),
    tokenizer: hashValue(tokens),
    rope: hashValue(rope.frequencies),
    plan: `${spec} sink${window.sink} recent${window.recent} edge${window.edge} page${pageTokens} ${codecsHash(plan)}`,
    ...codecIdentity(plan),
  };
}
