/** A model as a service: in this process, and through the message protocol. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { loadModel, type Model } from '../src/index.ts';
import { createService } from '../src/worker/create-service.ts';
import type { ModelService } from '../src/worker/service.ts';
import { writeGguf } from './gguf-writer.ts';
import { tinyModel } from './tiny-model.ts';

const bytes = writeGguf(tinyModel({ context: 512 }));
const load = () => loadModel(bytes, { device: 'js', pageTokens: 16, maxSequences: 4 });
const directory = mkdtempSync(join(tmpdir(), 'kvasir-worker-'));
afterAll(() => rmSync(directory, { recursive: true }));

const messages = [{ role: 'user', content: 'Who was Kvasir?' }];

describe('createService', () => {
  let model: Model;
  let service: ModelService;
  beforeAll(async () => {
    model = await load();
    service = createService(model);
  });
  afterAll(() => service.close());

  it('describes the model', () => {
    expect(service.info).toMatchObject({
      modelName: 'tiny llama',
      architecture: 'llama',
      kv: 'tq4',
      context: 512,
      trainedContext: 512,
      vocab: 257,
      maxSequences: 4,
      device: { name: 'js' },
      templateHasTools: false,
    });
    const { kvMemory, tokensThatFit, sequencesAtFullContext } = service.info;
    expect(kvMemory).toBe(model.stats().capacity);
    expect(tokensThatFit).toBeGreaterThanOrEqual(512 * sequencesAtFullContext);
    expect(sequencesAtFullContext).toBeGreaterThanOrEqual(4);
  });

  it('a slot keeps its cache, is saved, restored and erased, and belongs to its tenant', async () => {
    const ask = (slot: number, tenant?: string) =>
      service.answer(messages, { slot, tenant, maxTokens: 40, ignoreEos: true, temperature: 0 }).result();
    const first = await ask(3);
    expect((await ask(3)).usage.reusedTokens).toBe(first.usage.promptTokens - 1);
    const [state] = await service.slots();
    expect(state).toMatchObject({ slot: 3, busy: false });
    expect(await service.slots('other')).toEqual([]);

    const path = join(directory, 'slot.kvsession');
    expect(await service.saveSlot(3, path)).toEqual(state);
    await service.eraseSlot(3);
    expect(await service.slots()).toEqual([]);
    expect(await service.restoreSlot(5, path)).toEqual({ ...state, slot: 5 });
    expect((await ask(5)).text).toBe(first.text);
    await service.eraseSlot(5);
  });

  it('a slot gives one answer at a time', async () => {
    const stream = service.generate('Kvasir', { slot: 0, maxTokens: 20, ignoreEos: true });
    await stream.next();
    expect((await service.slots())[0]).toMatchObject({ slot: 0, busy: true });
    expect(() => service.generate('Odin', { slot: 0 })).toThrow('Slot 0 is busy. Wait until its request has ended');
    await expect(service.eraseSlot(0)).rejects.toThrow('Slot 0 is busy');
    await stream.return();
    await service.eraseSlot(0);
    expect(() => service.generate('Odin', { slot: -1 })).toThrow(
      'A slot must be an integer from 0 to 1023; got the number -1.',
    );
  });
});
