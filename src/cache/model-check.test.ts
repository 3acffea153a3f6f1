/**
 * Random operations on a small cache, in which eviction happens all the time. After each one, everything that can be seen
 * from outside must agree: texts, blocks, reference counts, bytes and events.
 */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { ALL_CASES, LONG_CASES } from '../../test/support/matrix.ts';
import {
  appendTokens,
  createObservedDevice,
  expectContents,
  LEAF,
  PAGE,
  PAUSE,
  tinyShape,
  windowedLeaf,
} from '../../test/support/tiny-cache.ts';
import { createLru } from '../eviction/eviction.ts';
import type { Block, KvView } from '../kernel/device.ts';
import { tailBlockTokens } from '../kernel/visibility.ts';
import { createHostStore } from '../store/host-store.ts';
import { rootKey } from '../store/leaf-key.ts';
import { createTierChain } from '../store/tier-chain.ts';
import { CapacityError } from '../util/errors.ts';
import { createKvCache, type KnownPath, type Owner, sharedLength } from './kv-cache.ts';
import { f16BlockBytes, pageBytes } from './leaf.ts';
import { whenPrefetched } from './prefetch.ts';
import type { PrefixEvent } from './prefix.ts';
import type { PrefixNode, UnfinishedLeaf } from './prefix-node.ts';
import type { Restoring } from './restore.ts';
import { type HeldContent, type Sequence, sinkPage } from './sequence.ts';
import { readTail } from './tail.ts';

const OPERATIONS = LONG_CASES ? 100_000 : ALL_CASES ? 5_000 : 2_000;
const PER_RUN = 200;

const CONTEXT = 24;
const MAX_OPEN = 5;
const SALTS = ['', 'a', 'b'];
const OWNERS: Owner[] = [{ name: 'first' }, { name: 'second' }];
const [MAX_READINGS, MAX_BACKGROUND] = [2, 3];
const IDENTITY = { model: '', rope: '', plan: '', tables: '', arithmetic: '', format: 1 };

interface Config {
  sinks: number;
  recent: number;
  overflow: 'error' | 'slide';
  /** Leaves that fit beside two sequences. */
  leaves: number;
  /** That of a second layer. */
  window?: number;
}

/** Numbers choose among what there is: the n-th sequence, a share of a length. */
type Operation =
  | { type: 'open'; salt: number; prompt: number[] }
  | { type: 'continue'; of: number; keep: number; more: number[]; owner: number }
  | { type: 'append'; of: number; tokens: number[] }
  | { type: 'crop'; of: number; length: number }
  | { type: 'fork' | 'dispose' | 'setAside' | 'hold'; of: number }
  | { type: 'plan'; of: number; count: number }
  | { type: 'keep'; of: number; owner: number }
  | { type: 'forkIdle' | 'forget'; owner: number }
  | { type: 'restore'; of: number; owner: number; shares: boolean }
  | { type: 'prefetch'; of: number; salt: number; prompt: number[] }
  | { type: 'release' }
  | { type: 'wait'; isLong: boolean }
  | { type: 'makeRoom'; leaves: number };

type StoredEvent = Extract<PrefixEvent, { type: 'stored' }>;

/** A sequence that is not disposed, and the tokens that it must hold. */
interface Tracked {
  sequence: Sequence;
  tokens: number[];
}

/** What somebody reads while everything else goes on: nothing of it may change. */
interface Reading {
  content: HeldContent;
  salt: string;
  tokens: number[];
}

const blocksOf = (tail: KvView['tail']) => tail.filter(block => block !== undefined);
const contentBlocks = ({ tail, sinkBlock, leaves, windowPages = [] }: KvView) => [
  ...[...blocksOf(tail), sinkBlock, ...leaves],
  ...blocksOf(windowPages),
];

const pathKey = (salt: string, tokens: readonly number[]) => `${salt}:${tokens.join()}`;

/** `expect` is too slow for this many checks. */
function check(condition: boolean, problem: string): void {
  if (!condition) throw new Error(problem);
}

function createWorld({ sinks, recent, overflow, leaves, window }: Config) {
  const leaf = window ? windowedLeaf(window) : LEAF;
  const { device, allocated } = createObservedDevice();
  /** All sequences that are not disposed: open ones and idle ones of owners. */
  const tracked = new Map<Sequence, Tracked>();
  const open: Tracked[] = [];
  /** Tails of sequences that have ended, and these sequences' texts. */
  const tails = new Map<UnfinishedLeaf, { salt: string; tokens: number[] }>();
  const readings: Reading[] = [];
  const readersOf = (block: Block) =>
    readings.filter(({ content }) => contentBlocks(content.view).includes(block)).length;
  const keptTails = () => {
    for (const tail of tails.keys())
      if (tail.blocks.every(one => !one || one.holders <= readersOf(one.block))) tails.delete(tail);
    return [...tails];
  };
  /** The index, replayed from its events. */
  const stored = new Map<number, StoredEvent>();
  /** The text up to each stored page. */
  const paths = new Set<string>();
  const textOf = ({ parent, tokens }: StoredEvent): number[] => {
    const before = stored.get(parent);
    return [...(before ? textOf(before) : []), ...tokens];
  };
  /** Roots of the index, as far as the policy has seen a node below them. */
  const roots = new Map<string, PrefixNode>();
  const lru = createLru<PrefixNode>();
  const shape = tinyShape(sinks);
  const options = { device, shape, leaf, recent, context: CONTEXT, overflow };
  const probe = createKvCache(options);
  /** Prefetch and restoring, which go on while others use the cache. They hold blocks that are nowhere else yet. */
  const background = new Set<Promise<void>>();
  const runInBackground = (work: Promise<void>) => {
    const ended = work.finally(() => background.delete(ended));
    // Awaited when the world is checked or disposed.
    ended.catch(() => {});
    background.add(ended);
  };
  const restoringOwners = new Set<Owner>();
  /** Prompts that wait, and where they were found last. */
  const watched: { prompt: number[]; salt: string; path: KnownPath }[] = SALTS.flatMap(salt =>
    [0, 1].map(id => ({ prompt: Array(CONTEXT).fill(id), salt, path: [] })),
  );
  const chain = createTierChain([{ store: createHostStore({ capacity: 2 ** 16 }), isOwned: true }]);
  // Memory comes later, as on a GPU: others run meanwhile.
  device.ensureMemory = () => new Promise(resolve => setImmediate(resolve));
  const cache = createKvCache({
    ...options,
    tiers: recent === 0 ? { chain, rootKey: salt => rootKey({ ...IDENTITY, salt }) } : undefined,
    capacity:
      2 * (probe.sequenceBytes + f16BlockBytes({ ...shape, layers: leaf.layers }, PAGE + recent)) +
      leaves * pageBytes(leaf),
    onEvent(event) {
      if (event.type === 'stored') {
        check((stored.get(event.parent)?.salt ?? event.salt) === event.salt, 'a leaf is below that of another salt');
        stored.set(event.id, event);
        const path = pathKey(event.salt, textOf(event));
        check(!paths.has(path), 'a page is in the index twice');
        paths.add(path);
      } else {
        const removed = stored.get(event.id)!;
        paths.delete(pathKey(removed.salt, textOf(removed)));
        stored.delete(event.id);
        for (const { parent } of stored.values()) check(parent !== event.id, 'a parent was evicted before its child');
      }
    },
    policy: {
      add(node) {
        let root = node;
        while (root.parent) root = root.parent;
        roots.set(root.salt, root);
        lru.add(node);
      },
      next: lru.next,
    },
  });

  /** Follows what the cache itself does with a sequence, too. */
  const track = (sequence: Sequence): Tracked => {
    const known = tracked.get(sequence);
    if (known) return known;
    const entry = { sequence, tokens: [...sequence.ids] };
    tracked.set(sequence, entry);
    const { fork, crop, dispose } = sequence;
    Object.assign(sequence, {
      fork() {
        const { sequence: copy } = track(fork());
        expectContents(copy, entry.tokens);
        return copy;
      },
      crop(length: number) {
        entry.tokens.length = crop(length);
        return entry.tokens.length;
      },
      dispose() {
        tracked.delete(sequence);
        dispose();
      },
    } satisfies Partial<Sequence>);
    return entry;
  };
  const checkNothingToEvict = () =>
    expect(cache.stats).toMatchObject({ idleSequences: 0, cachedLeaves: 0, cachedTails: 0 });
  const openPrompt = (prompt: readonly number[], salt: string, owner?: Owner) => {
    if (open.length >= MAX_OPEN) return;
    const own = owner && cache.idleOf(owner);
    const known = Math.max(cache.known(prompt, salt), own ? sharedLength(own.ids, prompt) : 0);
    const entry = track(cache.open(PAUSE, prompt, salt, owner));
    open.push(entry);
    expect(entry.sequence.salt).toBe(salt);
    // Less, if something had to be evicted to make room.
    expect(entry.tokens.length).toBeLessThanOrEqual(known);
    expect(entry.tokens).toEqual(prompt.slice(0, entry.tokens.length));
    expect(known).toBeLessThan(Math.max(1, prompt.length));
  };
  const pick = (of: number) => open[of % open.length] as Tracked | undefined;
  /** One whose pass has ended. */
  const pickIdle = (of: number): Tracked | undefined => {
    const idle = open.filter(({ sequence }) => !sequence.isPlanned);
    return idle[of % idle.length];
  };
  const read = ({ sequence, tokens }: Tracked): HeldContent => {
    const content = sequence.hold();
    readings.push({ content, salt: sequence.salt, tokens: [...tokens] });
    return content;
  };
  const endReading = (of: number) => readings.splice(of, 1)[0]?.content.release();
  /** Saves a sequence, and restores it beside the others. */
  const restore = async ({ sequence, tokens }: Tracked, owner: Owner, shares: boolean): Promise<void> => {
    const { salt } = sequence;
    const saved = [...tokens];
    const { view } = read({ sequence, tokens });
    let restoring: Restoring | undefined;
    try {
      restoring = cache.restore(PAUSE, salt);
      for (const leaf of view.leaves) await restoring.addLeaf(PAUSE, await device.readBlock(leaf));
      for (const [page, block] of (view.windowPages ?? []).entries())
        if (block) await restoring.addWindowPage(PAUSE, page, await device.readBlock(block));
      const sinkBytes = await device.readBlock(view.sinkBlock);
      const unsealed = { from: view.leaves.length * PAGE, to: saved.length };
      const tail = await readTail(device, view, { pageTokens: PAGE, recent }, unsealed);
      await restoring.finish(PAUSE, { ids: saved, sinks: sinkBytes, tail }, owner, shares);
    } catch (error) {
      restoring?.discard();
      if (!(error instanceof CapacityError)) throw error;
      return;
    } finally {
      endReading(readings.findIndex(({ content }) => content.view === view));
    }
    const restored = cache.idleOf(owner);
    if (restored) track(restored);
  };
  const take = (of: number) => (open.length > 0 ? open.splice(of % open.length, 1)[0] : undefined);

  const perform = (operation: Exclude<Operation, { type: 'wait' }>): void => {
    switch (operation.type) {
      case 'open':
        openPrompt(operation.prompt, SALTS[operation.salt]);
        return;
      case 'continue': {
        // The next message of any conversation, or another end of its last one.
        const all = [
          ...[...tracked.values()].map(({ sequence: { salt }, tokens }) => ({ salt, tokens })),
          ...keptTails().map(([, text]) => text),
        ];
        const from = all[operation.of % all.length] as (typeof all)[0] | undefined;
        if (!from) return;
        const kept = from.tokens.slice(0, from.tokens.length - (operation.keep % 8));
        openPrompt([...kept, ...operation.more], from.salt, OWNERS[operation.owner]);
        return;
      }
      case 'append': {
        const entry = pick(operation.of);
        if (!entry) return;
        const tokens = operation.tokens.slice(0, entry.sequence.maxChunk);
        const bytes = entry.sequence.bytesFor(tokens.length);
        const before = cache.stats.used;
        const isReserved = cache.makeRoom(bytes);
        try {
          appendTokens(device, entry.sequence, tokens);
          entry.tokens.push(...tokens);
        } catch (error) {
          // What was reserved is enough.
          expect(isReserved).toBe(false);
          throw error;
        }
        expect(cache.stats.used).toBeLessThanOrEqual(before + bytes);
        return;
      }
      case 'crop': {
        const entry = pick(operation.of);
        const length = operation.length % (1 + (entry?.sequence.length ?? 0));
        const expected = entry?.sequence.croppedLength(length);
        expect(entry?.sequence.crop(length)).toBe(expected);
        return;
      }
      case 'plan': {
        // A pass that fails, or is cancelled before it ran.
        const entry = pick(operation.of);
        const count = Math.min(operation.count, entry?.sequence.maxChunk ?? 0);
        if (count > 0) entry!.sequence.plan(count);
        return;
      }
      case 'setAside': {
        const entry = take(operation.of);
        if (entry) cache.setAside(entry.sequence);
        return;
      }
      case 'hold': {
        const entry = pickIdle(operation.of);
        if (entry && readings.length < MAX_READINGS) read(entry);
        return;
      }
      case 'release':
        if (restoringOwners.size === 0) endReading(0);
        return;
      case 'prefetch': {
        const entry = pick(operation.of);
        const [prompt, salt] = entry
          ? [[...entry.tokens, ...operation.prompt], entry.sequence.salt]
          : [operation.prompt, SALTS[operation.salt]];
        if (background.size < MAX_BACKGROUND)
          runInBackground(whenPrefetched(onChange => cache.prefetch(prompt, salt, onChange)));
        return;
      }
      case 'restore': {
        const entry = pickIdle(operation.of);
        const owner = OWNERS[operation.owner];
        if (!entry || entry.sequence.droppedTokens > 0 || entry.tokens.length === 0) return;
        if (background.size >= MAX_BACKGROUND || restoringOwners.has(owner)) return;
        cache.forget(owner);
        restoringOwners.add(owner);
        runInBackground(restore(entry, owner, operation.shares).finally(() => restoringOwners.delete(owner)));
        return;
      }
      case 'fork': {
        const entry = pickIdle(operation.of);
        if (entry && open.length < MAX_OPEN) open.push(track(entry.sequence.fork()));
        return;
      }
      case 'forkIdle': {
        // Making room for the copy may dispose the idle sequence itself.
        const idle = cache.idleOf(OWNERS[operation.owner]);
        if (idle && open.length < MAX_OPEN) open.push(track(idle.fork()));
        return;
      }
      case 'dispose':
        take(operation.of)?.sequence.dispose();
        return;
      case 'keep': {
        const entry = pickIdle(operation.of);
        const owner = OWNERS[operation.owner] as Owner | undefined;
        if (!entry) return;
        open.splice(open.indexOf(entry), 1);
        const { unfinished, salt } = entry.sequence;
        if (unfinished && !owner) tails.set(unfinished, { salt, tokens: entry.tokens });
        cache.keep(entry.sequence, owner);
        const isKept = entry.tokens.length > 0 && owner !== undefined;
        expect(tracked.has(entry.sequence)).toBe(isKept);
        if (owner && isKept) expect(cache.idleOf(owner)).toBe(entry.sequence);
        return;
      }
      case 'forget':
        cache.forget(OWNERS[operation.owner]);
        expect(cache.idleOf(OWNERS[operation.owner])).toBeUndefined();
        return;
      case 'makeRoom': {
        const bytes = operation.leaves * pageBytes(leaf);
        const fits = cache.makeRoom(bytes);
        expect(cache.stats.used + bytes <= cache.stats.capacity).toBe(fits);
        if (!fits && bytes <= cache.stats.capacity) checkNothingToEvict();
        return;
      }
    }
  };

  const descendantsOf = (node: PrefixNode): PrefixNode[] =>
    [...node.children.values()].flat().flatMap(child => [child, ...descendantsOf(child)]);
  /** Nodes of the index below the roots that have been seen. */
  const seenNodes = (): PrefixNode[] =>
    SALTS.flatMap(salt => {
      const root = roots.get(salt);
      return root ? descendantsOf(root) : [];
    });

  const checkTexts = () => {
    for (const { content, salt, tokens } of readings) {
      expectContents({ ...content, salt, ids: tokens } as unknown as Sequence, tokens);
      for (const block of contentBlocks(content.view)) check(allocated.has(block), 'a freed block is read');
    }
    for (const { sequence, tokens } of tracked.values()) {
      const { leaves, firstLeaf, tail } = sequence.view;
      for (const block of contentBlocks(sequence.view)) check(allocated.has(block), 'a freed block is in use');
      // It has leaves and blocks that no pass has filled yet.
      if (sequence.isPlanned) continue;
      expectContents(sequence, tokens);
      const unsealed = tokens.length - (firstLeaf + leaves.length) * PAGE;
      check(blocksOf(tail).length === Math.ceil(unsealed / tailBlockTokens(PAGE)), 'a tail is larger than its tokens');
      for (let page = 0; sequence.shares && firstLeaf === 0 && page < leaves.length; page++)
        check(paths.has(pathKey(sequence.salt, tokens.slice(0, (page + 1) * PAGE))), 'a sealed page is not published');
    }
  };
  const checkPaths = () => {
    for (const { prompt, salt, path } of watched)
      check(cache.known(prompt, salt, path) === cache.known(prompt, salt), 'a remembered path is outdated');
  };
  const checkBytes = () => {
    const { used, capacity, sharedLeaves, cachedLeaves, cachedTails, idleSequences } = cache.stats;
    check(used === device.allocatedBytes, 'used differs from what the device has allocated');
    check(used <= capacity, 'used exceeds the capacity');
    check(sharedLeaves + cachedLeaves === stored.size, 'the number of leaves differs from the events');
    // One that is being restored is not tracked yet.
    if (restoringOwners.size === 0) check(idleSequences === tracked.size - open.length, 'an idle sequence was lost');
    check(cachedTails === keptTails().length, 'a tail was lost');
  };
  const checkHolders = (nodes: readonly PrefixNode[]) => {
    const views = [...tracked.values()].map(({ sequence }) => sequence.view);
    const holders = new Map<object, number>();
    const count = (block: object) => holders.set(block, (holders.get(block) ?? 0) + 1);
    for (const view of views) for (const block of contentBlocks(view)) count(block);
    const blocksInIndex = ({ leaf, sinks }: PrefixNode) =>
      [leaf, sinks, leaf?.windowPage?.node ? leaf.windowPage : undefined].filter(one => one !== undefined);
    for (const node of nodes) for (const one of blocksInIndex(node)) count(one.block);
    for (const [{ blocks, sinks }] of keptTails()) for (const one of [...blocks, sinks]) if (one) count(one.block);
    for (const { tail } of views)
      for (const block of blocksOf(tail)) check(holders.get(block) === 1, 'a tail is shared');
    for (const { content } of readings) for (const block of contentBlocks(content.view)) count(block);
    for (const node of nodes)
      for (const one of blocksInIndex(node))
        check(one.holders === holders.get(one.block), 'a reference count differs from the number of holders');
    check(new Set(nodes.map(({ leaf }) => leaf?.block)).size === nodes.length, 'a block is in the index twice');
    if (nodes.length < stored.size) return;
    for (const block of allocated) check(holders.has(block), 'a block has leaked');
    check(holders.size === allocated.size, 'a freed block is in use');
    const idle = nodes.filter(({ leaf }) => leaf?.holders === 1);
    check(cache.stats.cachedLeaves === idle.length, 'cachedLeaves is wrong');
    if (tracked.size + readings.length === 0)
      check(cache.stats.cachedBytes === cache.stats.used, 'cachedBytes is wrong');
  };
  const checkEvents = (nodes: readonly PrefixNode[]) => {
    const seenSalts = new Set(nodes.map(({ salt }) => salt));
    const expected = [...stored.values()].filter(({ salt }) => seenSalts.has(salt));
    check(nodes.length === expected.length, 'the events give other leaves');
    for (const { id, salt, tokens, parent, leaf, children, childCount, sinks } of nodes) {
      const event = stored.get(id);
      check(event?.parent === parent?.id && event?.salt === salt, 'the events give another tree');
      check(event?.tokens.join() === tokens.join(), 'the events give other tokens');
      check(childCount === [...children.values()].flat().length, 'childCount is wrong');
      check(leaf?.node?.id === id, 'a leaf is in two places');
      let page = 0;
      for (let at = parent; at?.parent; at = at.parent) page++;
      check((sinks !== undefined) === (page === sinkPage(shape)), 'the sinks are not where a prefix looks for them');
    }
  };

  return {
    perform,
    /** Lets what runs in the background go on, or end. */
    async wait(isLong: boolean) {
      await new Promise(resolve => setImmediate(resolve));
      if (!isLong) return;
      await Promise.all(background);
      await cache.settle();
    },
    checkNothingToEvict,
    /** Returns the share of the index that was seen. */
    check(): number {
      const nodes = seenNodes();
      checkTexts();
      checkBytes();
      checkPaths();
      // They hold blocks that are nowhere else yet.
      if (background.size === 0) checkHolders(nodes);
      checkEvents(nodes);
      return stored.size === 0 ? 1 : nodes.length / stored.size;
    },
    async dispose() {
      await Promise.all(background);
      while (readings.length > 0) endReading(0);
      for (const { sequence } of open.splice(0)) sequence.dispose();
      cache.dispose();
      expect([cache.stats.used, device.allocatedBytes, allocated.size, stored.size, tracked.size]).toEqual([
        0, 0, 0, 0, 0,
      ]);
    },
  };
}

/** Few tokens, so that prefixes collide. */
const tokens = (maxLength: number) => fc.array(fc.nat(1), { minLength: 1, maxLength, size: 'max' });
const anyOf = fc.nat(1000);
const operation = fc.oneof(
  { weight: 3, arbitrary: fc.record({ type: fc.constant('open'), salt: fc.nat(2), prompt: tokens(CONTEXT) }) },
  {
    weight: 3,
    arbitrary: fc.record({
      type: fc.constant('continue'),
      of: anyOf,
      keep: fc.nat(7),
      more: tokens(6),
      owner: fc.nat(OWNERS.length),
    }),
  },
  { weight: 8, arbitrary: fc.record({ type: fc.constant('append'), of: anyOf, tokens: tokens(11) }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('crop'), of: anyOf, length: anyOf }) },
  {
    weight: 4,
    arbitrary: fc.record({ type: fc.constantFrom('fork', 'dispose', 'setAside', 'hold'), of: anyOf }),
  },
  { weight: 3, arbitrary: fc.record({ type: fc.constant('plan'), of: anyOf, count: fc.integer({ min: 1, max: 11 }) }) },
  {
    weight: 1,
    arbitrary: fc.record({
      ...{ type: fc.constant('restore'), of: anyOf, owner: fc.nat(OWNERS.length - 1), shares: fc.boolean() },
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ type: fc.constant('prefetch'), of: anyOf, salt: fc.nat(2), prompt: tokens(CONTEXT) }),
  },
  { weight: 1, arbitrary: fc.record({ type: fc.constant('release') }) },
  { weight: 4, arbitrary: fc.record({ type: fc.constant('wait'), isLong: fc.boolean() }) },
  { weight: 2, arbitrary: fc.record({ type: fc.constant('keep'), of: anyOf, owner: fc.nat(OWNERS.length) }) },
  {
    weight: 1,
    arbitrary: fc.record({ type: fc.constantFrom('forkIdle', 'forget'), owner: fc.nat(OWNERS.length - 1) }),
  },
  { weight: 1, arbitrary: fc.record({ type: fc.constant('makeRoom'), leaves: fc.nat(20) }) },
) as fc.Arbitrary<Operation>;
const config = fc.record<Config>({
  sinks: fc.constantFrom(0, 2, 6),
  recent: fc.constantFrom(0, 3),
  overflow: fc.constantFrom('error', 'slide'),
  leaves: fc.constantFrom(5, 12, 24),
  window: fc.constantFrom(undefined, 3, 7),
});

/** The tail of a sequence that was being restored was found by a prompt before it was written. */
const foundWhileItWasRestored: [Config, Operation[]] = [
  { sinks: 0, recent: 0, overflow: 'error', leaves: 5 },
  [
    { type: 'open', salt: 2, prompt: [0] },
    { type: 'fork', of: 0 },
    { type: 'fork', of: 0 },
    { type: 'append', of: 742, tokens: [1, 0] },
    { type: 'keep', of: 0, owner: 0 },
    { type: 'restore', of: 0, owner: 0, shares: true },
    { type: 'wait', isLong: false },
    { type: 'setAside', of: 0 },
    { type: 'open', salt: 2, prompt: [1, 0] },
  ],
];

it(`holds its invariants after each of ${OPERATIONS} random operations`, async () => {
  let performed = 0;
  let refused = 0;
  let seen = 0;
  const holds = fc.asyncProperty(
    config,
    fc.array(operation, { maxLength: PER_RUN, size: 'max' }),
    async (settings, operations) => {
      const world = createWorld(settings);
      for (const one of operations) {
        try {
          if (one.type === 'wait') await world.wait(one.isLong);
          else world.perform(one);
        } catch (error) {
          if (!(error instanceof CapacityError)) throw error;
          // An idle sequence that was disposed while it was being copied leaves what the copy held.
          if (one.type !== 'forkIdle') world.checkNothingToEvict();
          refused++;
        }
        performed++;
        seen += world.check();
      }
      await world.dispose();
    },
  );
  // How many operations a run has is random.
  while (performed < OPERATIONS)
    await fc.assert(holds, { numRuns: Math.ceil(OPERATIONS / PER_RUN), examples: [foundWhileItWasRestored] });
  expect(seen / performed).toBeGreaterThan(0.6);
  // Most operations find room.
  expect(refused / performed).toBeLessThan(0.3);
}, 600_000);
