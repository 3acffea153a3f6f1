import { describe, expect, it } from 'vitest';
import { createObservedDevice } from '../../test/support/tiny-cache.ts';
import { createPool, type Pool } from './pool.ts';
import { createPrefixIndex, type PrefixEvent, type PrefixIndex } from './prefix.ts';
import type { Leaf, PrefixNode, UnfinishedLeaf } from './prefix-node.ts';

const LONG = process.env.KVASIR_LONG === '1';
const P = 4;
const LEAF_BYTES = 10;

function create() {
  const { device } = createObservedDevice();
  const events: PrefixEvent[] = [];
  const pool: Pool = createPool(device, {
    onIdle: shared => index.noteIdle(shared as Leaf),
    onBusy: shared => index.noteBusy(shared as Leaf),
  });
  const index: PrefixIndex = createPrefixIndex(() => pool, { pageTokens: P, onEvent: event => events.push(event) });
  const leaf = (): Leaf => pool.allocate(LEAF_BYTES, [0]);
  /** Adds the pages of a text, and returns the leaves, each with the index and the caller as holders. */
  const store = (text: string, salt = '') => {
    const leaves: Leaf[] = [];
    let parent = index.root(salt);
    for (const page of pagesOf(text)) {
      const own = leaf();
      parent = index.insert(parent, page, own);
      leaves.push(pool.retain(parent.leaf!));
      pool.release(own);
    }
    return leaves;
  };
  /** The newest first, as sequences do. */
  const release = (leaves: readonly Leaf[]) => {
    for (const one of [...leaves].reverse()) pool.release(one);
  };
  /** The text of the leaves that are found. */
  const find = (text: string, salt = '', limit = text.length) =>
    index
      .find(salt, tokensOf(text), limit)
      .map(({ tokens }) => String.fromCharCode(...tokens))
      .join('');
  return { pool, index, events, leaf, store, release, find };
}

const tokensOf = (text: string) => [...text].map(char => char.charCodeAt(0));
const pagesOf = (text: string) =>
  Array.from({ length: text.length / P }, (_, i) => tokensOf(text.slice(i * P, (i + 1) * P)));

describe('find again', () => {
  it('goes on where it was last, and looks at no page twice', () => {
    const { store, index } = create();
    const text = 'onceuponatimetherewas';
    const pages = (count: number) => text.slice(0, count * P);
    let reads = 0;
    const tokens = new Proxy(tokensOf(text), {
      get(target, name) {
        reads++;
        return Reflect.get(target, name);
      },
    });
    const path: PrefixNode[] = [];
    const found = () => {
      reads = 0;
      const [remembered, anew] = [
        index.find('', tokens, text.length, path),
        index.find('', tokensOf(text), text.length),
      ];
      expect(remembered).toBe(path);
      expect(path).toEqual(anew);
      return path.length;
    };
    expect(found()).toBe(0);
    store(pages(3));
    expect(found()).toBe(3);
    expect(found()).toBe(3);
    // The page that is missing.
    expect(reads).toBeLessThanOrEqual(2 * P);
    store(pages(5));
    expect(found()).toBe(5);
    expect(reads).toBeLessThanOrEqual(3 * P * 2);
    index.remove(path[1]);
    expect(found()).toBe(1);
    store(pages(4));
    expect(found()).toBe(4);
    index.remove(path[0]);
    expect(found()).toBe(0);
  });
});

describe('unfinished leaves', () => {
  /** A text after `pages` sealed ones. */
  const createUnfinished = (text: string, pages = '', salt = '') => {
    const created = create();
    const { index, pool, store, release } = created;
    release(store(pages, salt));
    const parent = index.find(salt, tokensOf(pages), pages.length).at(-1);
    const unfinished = (text: string): UnfinishedLeaf => {
      const [block, sinks] = [1, 2].map(bytes => pool.allocate(bytes, [0]));
      return { salt, parent, tokens: tokensOf(text), blocks: [undefined, block], sinks };
    };
    /** The index is then the only holder. */
    const keep = (text: string) => {
      const one = unfinished(text);
      index.keepUnfinished(one);
      for (const block of [one.blocks[1]!, one.sinks!]) pool.release(block);
      return one;
    };
    return { ...created, parent, unfinished, keep, first: keep(text) };
  };

  it.each(['', 'onceupon'])('are found after the leaf before them (%j), in one salt only', pages => {
    const { index, parent, first, keep } = createUnfinished('a ti', pages, 'me');
    const second = keep('the');
    expect(index.unfinishedAfter('me', parent)).toEqual([first, second]);
    expect(index.unfinishedAfter('you', undefined)).toEqual([]);
    if (parent) expect(index.unfinishedAfter('me', parent.parent!.parent)).toEqual([]);
    expect([index.unfinished, index.unfinishedBytes]).toEqual([2, 2]);
    expect(index.idleBytes).toBe((pages.length / P) * LEAF_BYTES + 2 * (1 + 2));
  });

  it('of sequences are found until these leave', () => {
    const { index, parent, first, unfinished } = createUnfinished('a', 'once');
    const running = unfinished('b');
    const leave = index.join((_salt, node) => (node === parent ? running : undefined));
    index.join(() => undefined);
    expect(index.unfinishedAfter('', parent)).toEqual([first, running]);
    leave();
    expect(index.unfinishedAfter('', parent)).toEqual([first]);
  });

  it('replace those that they begin with', () => {
    const { index, keep } = createUnfinished('on');
    for (const text of ['once', 'onto', 'on']) keep(text);
    expect(index.unfinishedAfter('').map(({ tokens }) => String.fromCharCode(...tokens))).toEqual([
      'once',
      'onto',
      'on',
    ]);
    expect(index.unfinished).toBe(3);
  });

  it('are dropped with the leaf before them, or the least recently used first; nothing is left', () => {
    const { index, pool, parent, keep, first } = createUnfinished('a', 'onceupon');
    const second = keep('b');
    index.using(first, () => expect(first.blocks[1]!.holders).toBe(2));
    expect(index.dropUnfinished()).toBe(true);
    expect(index.unfinishedAfter('', parent)).toEqual([first]);
    expect([first, second].map(({ blocks }) => blocks[1]!.holders)).toEqual([1, 0]);
    while (index.evict());
    expect([index.unfinished, index.idleBytes, pool.used, index.dropUnfinished()]).toEqual([0, 0, 0, false]);
  });

  it('that are in use stay while they are, whatever is dropped', () => {
    const { index, pool, first } = createUnfinished('a');
    index.using(first, () => {
      index.dropUnfinished();
      expect(first.blocks[1]!.holders).toBe(1);
    });
    expect(pool.used).toBe(0);
  });
});

describe('keeping', () => {
  it('evicts other leaves only, and the leaf itself again later', () => {
    const { store, release, index, find } = create();
    release(store('onceupon'));
    release(store('thereisa'));
    const [, node] = index.find('', tokensOf('onceupon'), 8);
    index.keeping(node, () => {
      for (let i = 0; i < 2; i++) expect(index.evict()).toBe(true);
      expect([find('onceupon'), find('thereisa')]).toEqual(['onceupon', '']);
    });
    expect(index.evict()).toBe(true);
    expect(find('onceupon')).toBe('once');
  });
});

describe('find', () => {
  it('finds nothing in an empty index', () => {
    expect(create().find('onceupon')).toBe('');
  });

  it('finds the longest chain of whole pages', () => {
    const { store, find } = create();
    store('onceupona');
    expect(find('onceupon')).toBe('onceupon');
    expect(find('onceuponatime')).toBe('onceupon');
    expect(find('onceuporridge')).toBe('once');
    expect(find('one')).toBe('');
    // The same page elsewhere has seen another text.
    expect(find('uponupon')).toBe('');
  });

  it('stops at the limit', () => {
    const { store, find } = create();
    store('onceupon');
    expect(find('onceupon', '', 7)).toBe('once');
    expect(find('onceupon', '', 3)).toBe('');
  });

  it('shares nothing across salts', () => {
    const { store, find, index } = create();
    const [mine] = store('once', 'me');
    const [yours] = store('once', 'you');
    expect(mine).not.toBe(yours);
    expect([find('once', 'me'), find('once', 'you'), find('once', '')]).toEqual(['once', 'once', '']);
    expect(index.size).toBe(2);
  });

  it('compares tokens: pages with the same hash are told apart', () => {
    const { index, leaf } = create();
    // FNV-1a multiplies by an odd number: the last token can undo any difference before it.
    const hash = (tokens: number[]) => tokens.reduce((h, id) => Math.imul(h ^ id, 0x01000193), 0x811c9dc5);
    const first = [1, 2, 3, 4];
    const second = [9, 9, 9, hash([1, 2, 3]) ^ 4 ^ hash([9, 9, 9])];
    expect(hash(second)).toBe(hash(first));
    const nodes = [first, second].map(tokens => index.insert(index.root(''), tokens, leaf()));
    expect(nodes[0]).not.toBe(nodes[1]);
    expect(index.find('', first, P)).toEqual([nodes[0]]);
    expect(index.find('', second, P)).toEqual([nodes[1]]);
  });
});

describe('insert', () => {
  it('makes the index a holder of the leaf and of the sinks', () => {
    const { index, leaf, pool } = create();
    const [own, sinks] = [leaf(), pool.allocate(5, [0])];
    const node = index.insert(index.root(''), tokensOf('once'), own, sinks);
    expect([own.holders, sinks.holders, own.node, node.leaf, node.sinks]).toEqual([2, 2, node, own, sinks]);
  });

  it('returns the leaf that is already there: a page is kept once', () => {
    const { index, leaf } = create();
    const [first, second] = [leaf(), leaf()];
    const node = index.insert(index.root(''), tokensOf('once'), first);
    expect(index.insert(index.root(''), tokensOf('once'), second)).toBe(node);
    expect([index.size, first.holders, second.holders, second.node]).toEqual([1, 2, 1, undefined]);
  });

  it('keeps its own copy of the tokens', () => {
    const { index, leaf, find } = create();
    const tokens = tokensOf('once');
    index.insert(index.root(''), tokens, leaf());
    tokens[0] = 0;
    expect(find('once')).toBe('once');
  });
});

describe('evict', () => {
  it('frees nothing that somebody uses', () => {
    const { index, store } = create();
    store('onceupon');
    expect([index.evict(), index.size, index.idle]).toEqual([false, 2, 0]);
  });

  it('frees leaves that nobody uses, children before their parents', () => {
    const { index, store, release, find, pool } = create();
    release(store('onceupon'));
    expect([index.idle, pool.used]).toEqual([2, 2 * LEAF_BYTES]);
    expect([index.evict(), find('onceupon')]).toEqual([true, 'once']);
    expect([index.evict(), find('onceupon')]).toEqual([true, '']);
    expect([index.evict(), index.size, pool.used]).toEqual([false, 0, 0]);
  });

  it('frees the least recently used leaf first', () => {
    const { index, store, release, find } = create();
    release(store('aaaa'));
    release(store('bbbb'));
    // Used once more.
    release(store('aaaa'));
    index.evict();
    expect([find('aaaa'), find('bbbb')]).toEqual(['aaaa', '']);
  });

  it('keeps a parent until its last child is gone, and counts its age from its own last use', () => {
    const { index, store, release, find } = create();
    release(store('rootaaaa'));
    release(store('rootbbbb'));
    release(store('last'));
    index.evict();
    expect([find('rootaaaa'), find('rootbbbb')]).toEqual(['root', 'rootbbbb']);
    index.evict();
    index.evict();
    expect([find('rootbbbb'), find('last')]).toEqual(['', 'last']);
  });

  it('keeps a leaf that is in use again', () => {
    const { index, store, release } = create();
    release(store('once'));
    const again = store('once');
    expect(index.evict()).toBe(false);
    release(again);
    expect(index.evict()).toBe(true);
  });

  it('releases the sinks with the leaf in which they end', () => {
    const { index, leaf, pool, release } = create();
    const [own, sinks] = [leaf(), pool.allocate(5, [0])];
    index.insert(index.root(''), tokensOf('once'), own, sinks);
    pool.release(sinks);
    release([own]);
    index.evict();
    expect(pool.used).toBe(0);
  });

  it('frees the first pages of a sequence that has slid and still uses the later ones, which leave the index', () => {
    const { index, store, release, find, pool, events } = create();
    release(store('idle'));
    const [first, ...later] = store('onceuponatim');
    release([first]);
    // While there is anything else to evict, the text stays.
    expect([index.evict(), find('onceuponatim')]).toEqual([true, 'onceuponatim']);
    expect([index.evict(), index.size, first.holders]).toEqual([true, 0, 0]);
    expect(later.map(({ holders, node }) => [holders, node])).toEqual([
      [1, undefined],
      [1, undefined],
    ]);
    expect(pool.used).toBe(2 * LEAF_BYTES);
    const removed = events.flatMap(event => (event.type === 'removed' ? [event.id] : []));
    expect(removed.slice(1)).toEqual([...removed.slice(1)].sort((a, b) => b - a));
    release(later);
    expect([pool.used, index.evict()]).toEqual([0, false]);
  });

  it('forgets salts that have no leaves', () => {
    const { index, store, release } = create();
    const root = index.root('me');
    expect(index.root('me')).toBe(root);
    release(store('once', 'me'));
    index.evict();
    expect(index.root('me')).not.toBe(root);
  });
});

describe('events', () => {
  it('tell what is stored, below what, and what is removed', () => {
    const { index, store, release, events } = create();
    release(store('onceupon', 'me'));
    const [once, upon] = index.find('me', tokensOf('onceupon'), 8);
    index.evict();
    expect(events).toEqual([
      { type: 'stored', id: once.id, parent: once.parent?.id, salt: 'me', tokens: tokensOf('once') },
      { type: 'stored', id: upon.id, parent: once.id, salt: 'me', tokens: tokensOf('upon') },
      { type: 'removed', id: upon.id },
    ]);
  });

  it('do not repeat what is already there', () => {
    const { store, events } = create();
    for (let i = 0; i < 2; i++) store('once');
    expect(events).toHaveLength(1);
  });
});

it.each(LONG ? [10_000, 100_000] : [10_000])('stores, finds and evicts %i leaves fast', count => {
  const { index, leaf, pool, release } = create();
  const DEPTH = 10;
  const started = performance.now();
  /** All share their first page. */
  const text = (i: number) => Array.from({ length: DEPTH * P }, (_, n) => (n < P ? n : i + n));
  for (let i = 0; i < count / DEPTH; i++) {
    const leaves: Leaf[] = [];
    const tokens = text(i);
    let parent: PrefixNode = index.root('');
    for (let page = 0; page < DEPTH; page++) {
      const own = leaf();
      parent = index.insert(parent, tokens.slice(page * P, (page + 1) * P), own);
      leaves.push(own);
    }
    release(leaves);
  }
  expect(index.find('', text(1), DEPTH * P)).toHaveLength(DEPTH);
  let evicted = 0;
  while (index.evict()) evicted++;
  expect(evicted).toBe(count - count / DEPTH + 1);
  expect(pool.used).toBe(0);
  // Generous: what matters is that nothing searches all leaves for each leaf.
  expect(performance.now() - started).toBeLessThan(count === 10_000 ? 5_000 : 30_000);
});
