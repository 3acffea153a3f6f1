/** The tiers of a model: where its cache stores sealed leaves, and finds them again. */
import type { CacheTiers } from '../cache/kv-cache.ts';
import type { Engine } from '../engine/engine.ts';
import type { Plan } from '../plan/plan.ts';
import { cacheIdentity } from '../session/cache-identity.ts';
import { rootKey } from '../store/leaf-key.ts';
import { openTiers, type TiersInput } from '../store/open-tiers.ts';

export interface ModelTiers {
  tiers?: CacheTiers;
  /** What the tiers cannot do with these options; undefined: they store everything. */
  notice?: string;
}

/** Opens the tiers, if they are used. Leaves are found only by those that would compute the same bytes. */
export async function openModelTiers(
  engine: Engine,
  plan: Plan,
  tiers: TiersInput,
  overflow: 'error' | 'slide',
): Promise<ModelTiers> {
  const notice = tiersNotice(plan, overflow);
  if (plan.window.recent > 0 || plan.leaf.exact) return { notice };
  const identity = { ...(await cacheIdentity(engine, plan)), arithmetic: engine.device.arithmetic };
  const chain = await openTiers(tiers, { model: identity.model });
  // As JSON any salt is valid Unicode.
  return { tiers: { chain, rootKey: salt => rootKey({ ...identity, salt: JSON.stringify(salt) }) }, notice };
}

function tiersNotice({ window: { recent }, leaf, mode }: Plan, overflow: 'error' | 'slide'): string | undefined {
  if (leaf.exact)
    return `Nothing is stored in the tiers or read from them: this model keeps f16 pages (kvMode ${mode}).`;
  if (recent > 0)
    return (
      `The tiers are not used: with a recent window of ${recent} tokens, pages that come back would not give the same ` +
      'text. Use a codec spec without +recent.'
    );
  return overflow === 'slide'
    ? 'Pages of conversations that have dropped their oldest tokens are not stored in the tiers.'
    : undefined;
}
