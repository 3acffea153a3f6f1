/** The web app's state in one tab and in two, also where the browser's storage fails. No page is shown. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { BrowserModel, BrowserOptions } from '../../web/src/engine/browser.ts';
import type { Engine, Turn } from '../../web/src/engine/engine.ts';
import type { Message } from '../../web/src/state/conversation.ts';
import { createChannels, FakeDatabases, FakeLocks, FakeStorage } from '../support/browser-storage.ts';

let databases: FakeDatabases;
let page: EventTarget;

beforeEach(() => {
  databases = new FakeDatabases();
  page = new EventTarget();
  stubLocks(new FakeLocks());
  vi.stubGlobal('indexedDB', databases);
  vi.stubGlobal('BroadcastChannel', createChannels());
  vi.stubGlobal('localStorage', new FakeStorage());
  vi.stubGlobal('sessionStorage', new FakeStorage());
  vi.stubGlobal('document', { documentElement: { dataset: {} }, baseURI: 'http://kvasir.test/' });
  vi.stubGlobal('location', new URL('http://kvasir.test/'));
  vi.stubGlobal('addEventListener', page.addEventListener.bind(page));
  vi.stubGlobal('removeEventListener', page.removeEventListener.bind(page));
  vi.stubGlobal('requestAnimationFrame', setTimeout);
  vi.stubGlobal('cancelAnimationFrame', clearTimeout);
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.resetModules();
});

/** Undefined: as without https. New ones: those that held the others before have crashed. */
const stubLocks = (locks: FakeLocks | undefined, more: object = {}) =>
  vi.stubGlobal('navigator', { languages: ['en'], locks, ...more });

const showAgain = () => page.dispatchEvent(Object.assign(new Event('pageshow'), { persisted: true }));

/** Answers with the last question and a mark, or in parts, the second of which waits. */
function createEngine() {
  const asked: (readonly Turn[])[] = [];
  const held: (() => void)[] = [];
  const engine = {
    info: { maxAnswers: 4, id: 'model', codec: 'tq4', context: 100 },
    isHolding: false,
    /** Instead of an answer. */
    error: undefined as Error | undefined,
    /** Instead of its end. */
    breaksOff: false,
    async *ask(turns: readonly Turn[]) {
      asked.push(turns);
      if (engine.error) throw engine.error;
      const part = { reasoning: '', tokens: 1, scored: [] };
      yield { ...part, text: turns.at(-1)!.content };
      if (engine.isHolding) await new Promise<void>(resolve => held.push(resolve));
      if (engine.breaksOff) throw new Error('It broke off.');
      yield { ...part, text: '!' };
      return { finish: 'stop' };
    },
    keep: async () => {},
    countTokens: async () => 1,
    cacheUse: async () => undefined,
    close: async () => {},
    ended: new Promise(() => {}),
  };
  return Object.assign(engine, { asked, release: () => held.shift()!() });
}

/** A tab that is opened now: modules of its own. */
async function openTab() {
  vi.resetModules();
  const [chat, { current, conversations, saveUnsaved }, { connection }, drafts, { EngineError }] = await Promise.all([
    import('../../web/src/state/chat.ts'),
    import('../../web/src/state/conversations.ts'),
    import('../../web/src/state/connection.ts'),
    import('../../web/src/state/drafts.ts'),
    import('../../web/src/engine/engine.ts'),
  ]);
  const { notice, noticeAction, closeNotice } = await import('../../web/src/state/notice.ts');
  const { unsaved } = await import('../../web/src/state/unsaved.ts');
  const { changeDraft, changeEdit, editOf, draft } = drafts;
  const engine = createEngine();
  connection.value = { phase: 'ready', place: 'server', engine: engine as unknown as Engine };
  await chat.loadConversations();
  const write = async (text: string) => {
    changeDraft({ text });
    await settle();
  };
  return {
    ...chat,
    ...{ engine, write, changeDraft, changeEdit, editOf, closeNotice, saveUnsaved, EngineError },
    unsaved: () => unsaved.value.size,
    undo: () => noticeAction.value!.run(),
    send: () => chat.send().then(settle),
    /** Sends a message, and waits for the answer. */
    ask: (text: string) => write(text).then(chat.send).then(settle),
    draft: () => draft.value.text,
    notice: () => notice.value,
    titles: () => conversations.value.map(({ title }) => title),
    messages: () => current.value.messages,
    thread: () => current.value.messages.map(({ text }) => text),
    current: () => current.value,
  };
}

/** Until all tabs have read what the others have saved. */
async function settle(): Promise<void> {
  for (let i = 0; i < 20; i++) await new Promise(resolve => setImmediate(resolve));
}

const full = new DOMException('full', 'QuotaExceededError');

describe('two tabs', () => {
  it('that show the same new conversation do not write over each other', async () => {
    const first = await openTab();
    await first.write('a');
    const second = await openTab();
    expect(second.draft()).toBe('a');
    await first.send();
    expect(second.thread()).toEqual(['a', 'a!']);
    await first.ask('b');
    await second.ask('c');
    for (const tab of [first, second]) expect(tab.thread()).toEqual(['a', 'a!', 'b', 'b!', 'c', 'c!']);
  });

  it('a message is not sent from a tab that has not read yet what another one has saved', async () => {
    const first = await openTab();
    await first.write('a');
    const second = await openTab();
    await second.write('c');
    // Both in the same moment.
    await Promise.all([first.send(), second.send()]);
    expect(second.notice()).toMatch(/^Another tab answers/);
    expect(second.draft()).toBe('c');
    for (const tab of [first, second]) expect(tab.thread()).toEqual(['a', 'a!']);
  });

  it('one shows no other version of a message while the other one answers', async () => {
    const first = await openTab();
    await first.ask('a');
    await first.regenerate(first.messages()[1]);
    await settle();
    const second = await openTab();
    first.engine.isHolding = true;
    const sent = first.ask('b');
    await vi.waitFor(() => expect(second.thread()).toEqual(['a', 'a!', 'b']));
    await second.showVersion(second.messages()[1], -1);
    expect(second.notice()).toMatch(/^Another tab answers/);
    first.engine.release();
    await sent;
    expect(second.thread()).toEqual(['a', 'a!', 'b', 'b!']);
    // A second click at once does not count.
    await Promise.all([1, 2].map(() => second.showVersion(second.messages()[1], -1)));
    expect(second.thread()).toEqual(['a', 'a!']);
    // Another one may come before all is saved.
    second.closeNotice();
    await second.showVersion(second.messages()[1], 1);
    expect(second.notice()).toBe('');
    await settle();
    expect(first.thread()).toEqual(['a', 'a!', 'b', 'b!']);
  });

  it('without locks, an answer stays with its question', async () => {
    stubLocks(undefined);
    const first = await openTab();
    await first.ask('a');
    await first.regenerate(first.messages()[1]);
    await settle();
    const second = await openTab();
    first.engine.isHolding = true;
    const sent = first.ask('b');
    await vi.waitFor(() => expect(second.thread()).toEqual(['a', 'a!', 'b']));
    await second.showVersion(second.messages()[1], -1);
    await settle();
    first.engine.release();
    await sent;
    expect(first.thread()).toEqual(['a', 'a!']);
    await first.showVersion(first.messages()[1], 1);
    expect(first.thread()).toEqual(['a', 'a!', 'b', 'b!']);
  });

  it('without locks, one does not take over the answer that grows in the other', async () => {
    stubLocks(undefined);
    vi.useFakeTimers({ toFake: ['setInterval', 'setTimeout', 'Date'] });
    try {
      const first = await openTab();
      first.engine.isHolding = true;
      await first.write('a');
      const sent = first.send();
      await settle();
      const grow = () => vi.advanceTimersByTimeAsync(1000).then(settle);
      await grow();
      expect(databases.records('kvasir.unfinished', 'answers').size).toBe(1);
      const second = await openTab();
      for (let i = 0; i < 5; i++) await grow();
      expect(second.thread()).toEqual(['a']);
      first.engine.release();
      await sent;
      expect(second.thread()).toEqual(['a', 'a!']);
      // One whose page is gone is.
      first.engine.isHolding = true;
      await first.write('b');
      void first.send();
      await settle();
      await grow();
      page.dispatchEvent(new Event('pagehide'));
      await settle();
      const third = await openTab();
      await settle();
      expect(third.thread()).toEqual(['a', 'a!', 'b', 'b']);
    } finally {
      vi.useRealTimers();
    }
  });
});

describe('an answer that its page left', () => {
  /** Of the tab that holds it. */
  const begin = async () => {
    const tab = await openTab();
    tab.engine.isHolding = true;
    await tab.write('a');
    const sent = tab.send();
    await vi.waitFor(() => expect(tab.engine.asked.length).toBe(1));
    await settle();
    return { tab, sent };
  };

  it('by a crash is not replaced by that of the tab that asks next', async () => {
    vi.useFakeTimers({ toFake: ['setInterval'] });
    try {
      await begin();
      const second = await openTab();
      await vi.advanceTimersByTimeAsync(1000);
      stubLocks(new FakeLocks());
      await second.write('b');
      await second.send();
      expect(second.notice()).toMatch(/^An answer that another tab had begun/);
      expect(second.thread()).toEqual(['a', 'a']);
      expect(second.draft()).toBe('b');
      await second.send();
      expect(second.thread()).toEqual(['a', 'a', 'b', 'b!']);
      expect((await openTab()).thread()).toEqual(['a', 'a', 'b', 'b!']);
    } finally {
      vi.useRealTimers();
    }
  });

  it('is complete if the page is shown again before it breaks off, and is there if after', async () => {
    const { tab, sent } = await begin();
    tab.engine.breaksOff = true;
    page.dispatchEvent(new Event('pagehide'));
    showAgain();
    tab.engine.release();
    await sent;
    expect(tab.messages().map(({ error }) => error)).toEqual([undefined, 'It broke off.']);

    await tab.write('b');
    const next = tab.send();
    await vi.waitFor(() => expect(tab.engine.asked.length).toBe(2));
    await settle();
    page.dispatchEvent(new Event('pagehide'));
    tab.engine.release();
    await next;
    expect(tab.thread()).toEqual(['a', 'a', 'b']);
    showAgain();
    await vi.waitFor(() => expect(tab.thread()).toEqual(['a', 'a', 'b', 'b']));
  });

  it('is saved by its tokens where timers are slow, and its versions once', async () => {
    const tab = await openTab();
    await tab.ask('a');
    vi.useFakeTimers({ toFake: ['setInterval', 'Date'] });
    try {
      const kept = (store: string) => [...databases.records('kvasir.unfinished', store).values()];
      tab.engine.ask = async function* () {
        for (const text of ['b', 'c']) {
          vi.setSystemTime(Date.now() + 1500);
          yield { text, reasoning: '', tokens: 1, scored: [] };
        }
        return new Promise(() => {});
      };
      void tab.regenerate(tab.messages()[1]);
      await vi.waitFor(() => expect(kept('answers')).toMatchObject([{ message: { text: 'bc' } }]));
      expect(JSON.stringify(kept('answers'))).not.toContain('versions');
      expect(kept('versions')).toMatchObject([{ before: [[{ text: 'a!' }]] }]);
      stubLocks(new FakeLocks());
      const next = await openTab();
      await settle();
      expect(next.messages()[1]).toMatchObject({ text: 'bc', versions: { before: [[{ text: 'a!' }]] } });
      expect([...kept('answers'), ...kept('versions')]).toEqual([]);
    } finally {
      vi.useRealTimers();
    }
  });
});

describe('a context that is full', () => {
  const fill = async () => {
    const tab = await openTab();
    await tab.ask('aa');
    await tab.ask('b');
    tab.engine.error = new tab.EngineError('no room', 'full');
    await tab.ask('c');
    expect(tab.messages().at(-1)).toMatchObject({ text: '', error: 'no room', isFull: true });
    tab.engine.error = undefined;
    return { tab, failed: tab.messages().at(-1)! };
  };

  it('the question moves to a new conversation', async () => {
    const { tab, failed } = await fill();
    const { id } = tab.current();
    await tab.continueElsewhere(failed);
    await settle();
    expect(tab.current().id).not.toBe(id);
    expect(tab.thread()).toEqual(['c', 'c!']);
    expect(tab.engine.asked.at(-1)!.map(({ content }) => content)).toEqual(['c']);
    expect(tab.titles().sort()).toEqual(['aa', 'c']);
    const saved = databases.records('kvasir', 'conversations').get(id) as { messages: Message[] };
    expect(saved.messages.map(({ text }) => text)).toEqual(['aa', 'aa!', 'b', 'b!']);
  });

  it('or the oldest messages are left out, and stay to be read', async () => {
    const { tab, failed } = await fill();
    // Half of the context is for what comes.
    tab.engine.countTokens = async () => 80;
    await tab.leaveOutOldest(failed);
    expect(tab.engine.asked.at(-1)!.map(({ content }) => content)).toEqual(['b', 'b!', 'c']);
    expect(tab.thread()).toEqual(['aa', 'aa!', 'b', 'b!', 'c', 'c!']);
    await tab.ask('d');
    expect(tab.engine.asked.at(-1)!.map(({ content }) => content)).toEqual(['b', 'b!', 'c', 'c!', 'd']);
  });
});

describe('a conversation', () => {
  it('takes the next question while the answer before is saved', async () => {
    const tab = await openTab();
    tab.engine.isHolding = true;
    await tab.write('a');
    const sent = tab.send();
    await vi.waitFor(() => expect(tab.engine.asked.length).toBe(1));
    await settle();
    tab.engine.release();
    while (tab.thread().length < 2) await Promise.resolve();
    tab.engine.isHolding = false;
    tab.changeDraft({ text: 'b' });
    await Promise.all([sent, tab.send()]);
    expect(tab.notice()).toBe('');
    expect(tab.thread()).toEqual(['a', 'a!', 'b', 'b!']);
    expect((await openTab()).thread()).toEqual(['a', 'a!', 'b', 'b!']);
  });

  const isWhole = (messages: readonly Message[]) => messages.every(({ error }) => error === undefined);

  it('goes on where IndexedDB cannot be opened, and says so', async () => {
    databases.openError = new DOMException('no', 'UnknownError');
    const tab = await openTab();
    expect(tab.notice()).toBe('What is saved could not be read: no');
    await tab.ask('a');
    await tab.ask('b');
    expect(tab.thread()).toEqual(['a', 'a!', 'b', 'b!']);
    expect(isWhole(tab.messages())).toBe(true);
    expect(tab.notice()).toMatch(/could not be saved: no$/);
    // It may work later.
    databases.openError = undefined;
    await tab.ask('c');
    expect((await openTab()).thread()).toEqual(['a', 'a!', 'b', 'b!', 'c', 'c!']);
  });

  it('is saved again after the connection to IndexedDB was lost', async () => {
    const tab = await openTab();
    await tab.ask('a');
    databases.disconnect();
    await tab.ask('b');
    expect(tab.thread()).toEqual(['a', 'a!', 'b', 'b!']);
    expect(tab.notice()).toBe('');
    expect((await openTab()).thread()).toEqual(['a', 'a!', 'b', 'b!']);
  });

  it('that could not be saved stays when another tab changes one', async () => {
    const first = await openTab();
    await first.ask('old');
    const second = await openTab();
    databases.writeError = full;
    first.startNew();
    await first.ask('unsaved');
    expect(first.notice()).toMatch(/could not be saved: the storage of this browser is full/);
    databases.writeError = undefined;
    await second.ask('more');
    expect(first.thread()).toEqual(['unsaved', 'unsaved!']);
    expect(first.titles().sort()).toEqual(['old', 'unsaved']);
    // One that was saved goes when another tab deletes it.
    await second.remove(second.current().id);
    await settle();
    expect(first.titles()).toEqual(['unsaved']);
  });
});

describe('what is not saved', () => {
  /** Whether the browser asks before the tab is closed. */
  const asksBefore = () => !page.dispatchEvent(new Event('beforeunload', { cancelable: true }));

  it('is marked until it is, and the browser asks before the tab is closed', async () => {
    const tab = await openTab();
    expect(asksBefore()).toBe(false);
    databases.writeError = full;
    await tab.ask('a');
    tab.closeNotice();
    expect([tab.unsaved() > 0, asksBefore()]).toEqual([true, true]);
    databases.writeError = undefined;
    await tab.saveUnsaved();
    await tab.write('b');
    await tab.write('');
    expect([tab.unsaved(), asksBefore()]).toEqual([0, false]);
    expect((await openTab()).thread()).toEqual(['a', 'a!']);
  });

  it('is not counted as imported', async () => {
    const tab = await openTab();
    const file = (id: string) => {
      const conversations = [{ id, title: id, updated: 1, messages: [{ id: 'q', role: 'user', text: id }] }];
      return new File([JSON.stringify({ format: 'kvasir conversations', version: 1, conversations })], 'a.json');
    };
    await tab.importConversations(file('a'));
    expect(tab.notice()).toBe('1 imported.');
    databases.writeError = full;
    await tab.importConversations(file('b'));
    expect(tab.notice()).toBe('0 imported, 1 could not be saved: only this tab has them.');
    expect(tab.titles().sort()).toEqual(['a', 'b']);
  });

  it('is asked to be kept when the browser needs space, once a conversation is saved', async () => {
    const persist = vi.fn(async () => true);
    stubLocks(new FakeLocks(), { storage: { persist } });
    const tab = await openTab();
    expect(persist).not.toHaveBeenCalled();
    await tab.ask('a');
    await tab.ask('b');
    expect(persist).toHaveBeenCalledTimes(1);
  });

  it('has the room of the oldest caches', async () => {
    const files = new Map([1, 2, 3].map(used => [`sessions/${used}.kvsession`, { bytes: 10, used }]));
    files.set('models/a/model.gguf', { bytes: 10, used: 0 });
    vi.doMock('kvasir/worker', () => ({
      listStored: async () => ({ files: [...files].map(([path, { bytes }]) => ({ path, bytes })), quota: 150 }),
      openStored: async (path: string) => ({ lastModified: files.get(path)!.used }),
      async deleteStored(path: string) {
        files.delete(path);
        if (files.size < 3) databases.writeError = undefined;
      },
    }));
    stubLocks(new FakeLocks(), { storage: { getDirectory() {} } });
    try {
      const tab = await openTab();
      databases.writeError = full;
      await tab.ask('a');
      expect([...files.keys()]).toEqual(['sessions/3.kvsession', 'models/a/model.gguf']);
      expect((await openTab()).thread()).toEqual(['a', 'a!']);
      // A tenth of the quota is for them.
      for (const used of [4, 5]) files.set(`sessions/${used}.kvsession`, { bytes: 6, used });
      await (await import('../../web/src/engine/caches.ts')).limitCaches();
      expect([...files.keys()]).toEqual(['models/a/model.gguf', 'sessions/4.kvsession', 'sessions/5.kvsession']);
      await (await import('../../web/src/engine/sessions.ts')).deleteAllCaches();
      expect([...files.keys()]).toEqual(['models/a/model.gguf']);
    } finally {
      vi.doUnmock('kvasir/worker');
    }
  });
});

describe('what the user may want back', () => {
  it('a conversation that was deleted, for some seconds', async () => {
    const tab = await openTab();
    await tab.ask('a');
    await tab.write('b');
    await tab.remove(tab.current().id);
    expect([tab.notice(), tab.titles()]).toEqual(['Conversation deleted.', []]);
    tab.undo();
    await settle();
    expect([tab.notice(), tab.thread(), tab.draft()]).toEqual(['', ['a', 'a!'], 'b']);
    const next = await openTab();
    expect([next.thread(), next.draft()]).toEqual([['a', 'a!'], 'b']);
  });

  it('a question that was being edited when the page was left', async () => {
    const tab = await openTab();
    await tab.ask('a');
    const [question] = tab.messages();
    tab.changeEdit(question.id, 'c');
    await settle();
    const next = await openTab();
    expect(next.editOf(question.id)).toBe('c');
    await next.edit(next.messages()[0], 'c');
    expect(next.thread()).toEqual(['c', 'c!']);
    expect([next.editOf(question.id), (await openTab()).editOf(question.id)]).toEqual([undefined, undefined]);
  });

  it('what another tab has just saved, when this one gives a title', async () => {
    const tab = await openTab();
    await tab.ask('a');
    const { id, messages } = tab.current();
    const saved = databases.records('kvasir', 'conversations');
    const more = { id: 'q', role: 'user', text: 'of another tab' } as const;
    saved.set(id, { ...tab.current(), messages: [...messages, more] });
    tab.rename(id, ' Myths ');
    await settle();
    expect(saved.get(id)).toMatchObject({ title: 'Myths', messages: [...messages, more] });
    expect(tab.titles()).toEqual(['Myths']);
  });
});

describe('settings', () => {
  const openSettings = () => {
    vi.resetModules();
    return import('../../web/src/state/settings.ts');
  };

  it('that two tabs change are all kept, and the other tab has them; what runs is its own', async () => {
    const first = await openSettings();
    const second = await openSettings();
    first.change({ system: 'In French.', model: { url: 'http://models.test/a.gguf' } });
    second.change({ temperature: 0.7, seed: 1 });
    second.change({ seed: undefined });
    page.dispatchEvent(Object.assign(new Event('storage'), { key: 'kvasir.settings' }));
    for (const { settings } of [first, second])
      expect(settings.value).toMatchObject({ system: 'In French.', temperature: 0.7 });
    expect(second.settings.value.model).toBeUndefined();
    const { settings } = await openSettings();
    expect(settings.value).toEqual(first.settings.value);
    expect(settings.value.seed).toBeUndefined();
  });
});

describe('the model of this browser', () => {
  const URL_OF_MODEL = 'http://models.test/small.gguf';
  const opened: (BrowserModel | undefined)[] = [];
  /** The names of models that are not there yet. */
  const loading: string[] = [];
  let report: BrowserOptions['onProgress'];
  let openError: Error | undefined;

  const openConnection = async () => {
    vi.doMock('../../web/src/engine/browser.ts', () => ({
      async openBrowser({ model, signal, onProgress }: BrowserOptions) {
        opened.push(model);
        report = onProgress;
        if (openError) throw openError;
        if (model && 'url' in model && loading.includes(model.url))
          await new Promise((_, reject) => signal!.addEventListener('abort', reject));
        return createEngine();
      },
    }));
    vi.stubGlobal('fetch', async () => new Response('', { status: 404 }));
    vi.resetModules();
    return import('../../web/src/state/connection.ts');
  };
  const savedModel = () => JSON.parse(localStorage.getItem('kvasir.settings')!).model;
  afterEach(() => {
    vi.doUnmock('../../web/src/engine/browser.ts');
    opened.length = 0;
    loading.length = 0;
    openError = undefined;
  });

  it('is Mimir after the stored one was deleted', async () => {
    const { openHere, forgetModel, reconnect } = await openConnection();
    await openHere({ url: URL_OF_MODEL });
    forgetModel({ path: 'models/1/other.gguf', source: 'http://models.test/other.gguf' });
    expect(savedModel()).toEqual({ url: URL_OF_MODEL });
    forgetModel({ path: 'models/2/small.gguf', source: URL_OF_MODEL });
    expect(savedModel()).toBeUndefined();
    await reconnect();
    expect(opened).toEqual([{ url: URL_OF_MODEL }, undefined]);
    await openHere({ path: 'models/2/small.gguf' });
    forgetModel();
    expect(savedModel()).toBeUndefined();
  });

  it('is the file that was chosen again after a download is paused', async () => {
    const { openHere, openModelFiles, stopLoading, connection } = await openConnection();
    const file = new File([], 'tiny.gguf');
    await openModelFiles([file]);
    loading.push(URL_OF_MODEL);
    void openHere({ url: URL_OF_MODEL });
    await settle();
    await stopLoading();
    expect(connection.value.phase).toBe('ready');
    expect(opened.at(-1)).toEqual({ file });
    expect(savedModel()).toEqual({ fileName: 'tiny.gguf' });
  });

  describe('that is downloaded', () => {
    /** Mimir answers while the download has begun. */
    const download = async () => {
      stubLocks(new FakeLocks(), { storage: { getDirectory: () => Promise.reject(new Error('none')) } });
      const connect = await openConnection();
      await connect.reconnect();
      const { engine } = connect.connection.value;
      const close = vi.spyOn(engine!, 'close');
      loading.push(URL_OF_MODEL);
      void connect.openHere({ url: URL_OF_MODEL });
      await vi.waitFor(() => expect(opened.length).toBe(2));
      return { ...connect, engine, close };
    };

    it('leaves the one before in use until it is all there', async () => {
      const { connection, engine, close } = await download();
      vi.useFakeTimers({ toFake: ['performance'] });
      try {
        report!({ phase: 'fetch', done: 0, total: 100 });
        vi.advanceTimersByTime(2000);
        report!({ phase: 'fetch', done: 40, total: 100 });
      } finally {
        vi.useRealTimers();
      }
      expect(connection.value).toMatchObject({ phase: 'opening', engine, progress: { done: 40, secondsLeft: 3 } });
      expect(close).not.toHaveBeenCalled();
      // Before anything of it is in memory.
      report!({ phase: 'fetch', done: 100, total: 100 });
      expect(close).toHaveBeenCalledTimes(1);
      expect(connection.value.engine).toBeUndefined();
    });

    it('and when it breaks off', async () => {
      const { connection, engine, close, openHere } = await download();
      openError = new Error('no network');
      await openHere({ url: URL_OF_MODEL });
      expect(connection.value).toMatchObject({ phase: 'failed', detail: 'no network', engine });
      expect(close).not.toHaveBeenCalled();
    });

    it('and goes back to it when the download is paused', async () => {
      const { connection, engine, close, stopLoading } = await download();
      await stopLoading();
      expect(connection.value).toEqual({ phase: 'ready', place: 'browser', engine });
      expect(savedModel()).toBeUndefined();
      expect([opened.length, close.mock.calls.length]).toEqual([2, 0]);
    });
  });

  describe('in a comparison', () => {
    const openComparison = async () => {
      const connect = await openConnection();
      const { changeDraft, draft } = await import('../../web/src/state/drafts.ts');
      return { ...connect, ...(await import('../../web/src/compare/comparison.ts')), changeDraft, draft };
    };

    it('keeps what was asked when it cannot be opened', async () => {
      const { compareDraft, changeDraft, draft, failure } = await openComparison();
      changeDraft({ text: 'a', attachments: [{ id: 'd', name: 'd.txt', text: 'D' }] });
      openError = new Error('no memory');
      await compareDraft();
      expect(failure.value).toBe('no memory');
      expect(draft.value).toMatchObject({ text: 'a', attachments: [{ name: 'd.txt' }] });
      openError = undefined;
      await compareDraft();
      expect([failure.value, draft.value.text]).toEqual(['', '']);
    });

    it('begins with the best codec that needs no profile', async () => {
      const { panes, browserModel } = await openComparison();
      browserModel.value = { path: 'models/1/small.gguf' };
      expect(panes.map(({ value }) => value.codec)).toEqual(['f16', 'tq3']);
    });
  });
});
