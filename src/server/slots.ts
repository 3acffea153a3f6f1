/** Slots, as llama.cpp's server has them: conversations with a cache of their own, which can be saved and restored. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { z } from 'zod';
import { CapacityError, InputError } from '../util/errors.ts';
import { ApiError, invalidRequest, toApiError } from './errors.ts';
import type { Exchange, Route } from './route.ts';
import { DEFAULT_TENANT, type Tenant } from './tenants.ts';

export const slots: Route = {
  method: 'get',
  path: '/slots',
  summary: 'The slots of the tenant that hold something.',
  async handle({ jobs, tenant, json }) {
    const service = jobs.service();
    const states = await service.slots(tenant.name);
    return json(
      states.map(({ slot, tokens, bytes, busy }) => ({
        id: slot,
        n_ctx: service.info.context,
        n_tokens: tokens,
        n_bytes: bytes,
        is_processing: busy,
      })),
    );
  },
};

const slotSchema = () => z.object({ filename: z.string().nullish() });
type SlotRequest = z.infer<ReturnType<typeof slotSchema>>;

export const slot: Route<SlotRequest> = {
  method: 'post',
  path: '/slots/:id',
  summary: 'With `?action=save`, `restore` or `erase`: saves a slot to a file, restores it, or empties it.',
  schema: slotSchema,
  async handle(exchange, { filename }) {
    const { jobs, tenant, json } = exchange;
    const service = jobs.service();
    const id = Number(exchange.param('id'));
    if (!Number.isInteger(id)) throw invalidRequest('The path needs the number of a slot, as in /slots/0.');
    const action = exchange.query('action');
    if (!['save', 'restore', 'erase'].includes(action ?? ''))
      throw invalidRequest('action must be save, restore or erase, as in /slots/0?action=save.', 'action');
    const started = performance.now();
    const ms = () => performance.now() - started;
    let path = '';
    try {
      if (action === 'erase') {
        const held = (await service.slots(tenant.name)).find(state => state.slot === id);
        await service.eraseSlot(id, tenant.name);
        return json({ id_slot: id, n_erased: held?.tokens ?? 0 });
      }
      path = await slotFile(exchange, tenant, filename);
      if (action === 'save') {
        const { tokens, bytes } = await service.saveSlot(id, path, tenant.name);
        return json({ id_slot: id, filename, n_saved: tokens, n_written: bytes, timings: { save_ms: ms() } });
      }
      const { tokens, bytes } = await service.restoreSlot(id, path, tenant.name);
      return json({ id_slot: id, filename, n_restored: tokens, n_read: bytes, timings: { restore_ms: ms() } });
    } catch (error) {
      // A full disk or cache, not a long prompt.
      if (error instanceof CapacityError)
        throw new ApiError(507, toApiError(error).message, { code: 'insufficient_storage' });
      // Clients know the file by its name. Where it is does not concern them.
      if (error instanceof InputError && path && error.message.includes(path))
        throw invalidRequest(error.message.replaceAll(path, filename ?? ''), 'filename');
      throw error;
    }
  },
};

/** Tenants have folders of their own: a file of another tenant cannot be named. */
async function slotFile({ slotPath }: Exchange, { name }: Tenant, filename: string | null | undefined) {
  if (slotPath === undefined)
    throw new ApiError(501, 'Slots cannot be saved here: the server was started without --slot-save-path.');
  if (!filename || !/^[\w-][\w.-]{0,199}$/.test(filename))
    throw invalidRequest('filename must be 1 to 200 letters, digits, dots, dashes or underscores.', 'filename');
  const folder = name === DEFAULT_TENANT.name ? slotPath : join(slotPath, `tenant-${name}`);
  await mkdir(folder, { recursive: true, mode: 0o700 });
  return join(folder, filename);
}
