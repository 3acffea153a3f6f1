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

/** Undefined: as without https. */
const stubLocks = (locks: FakeLocks | undefined) => vi.stubGlobal('navigator', { languages: ['en'], locks });

/** Answers with the last question and a mark, or in parts, the second of which waits. */
function createEngine() {
  const asked: (readonly Turn[])[] = [];
  const held: (() => void)[] = [];
  const engine = {
    info: { maxAnswers: 4, id: 'model', codec: 'tq4' },
    isHolding: false,
    async *ask(turns: readonly Turn[]) {
      asked.push(turns);
      const part = { reasoning: '', tokens: 1, scored: [] };
      yield { ...part, text: turns.at(-1)!.content };
      if (engine.isHolding) await new Promise<void>(resolve => held.push(resolve));
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
  const [chat, { current, conversations }, { connection }, { changeDraft, draft }, { notice, closeNotice }] =
    await Promise.all([
      import('../../web/src/state/chat.ts'),
      import('../../web/src/state/conversations.ts'),
      import('../../web/src/state/connection.ts'),
      import('../../web/src/state/drafts.ts'),
      import('../../web/src/state/notice.ts'),
    ]);
  const engine = createEngine();
  connection.value = { phase: 'ready', place: 'server', engine: engine as unknown as Engine };
  await chat.loadConversations();
  const write = async (text: string) => {
    changeDraft({ text });
    await settle();
  };
  return {
    ...chat,
    ...{ engine, write, changeDraft, closeNotice },
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

  const openConnection = async () => {
    vi.doMock('../../web/src/engine/browser.ts', () => ({
      async openBrowser({ model, signal }: BrowserOptions) {
        opened.push(model);
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
});
