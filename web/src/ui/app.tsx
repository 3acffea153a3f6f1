/** The page: conversations, the one that is shown, and what runs. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { readAddress } from '../compare/address.ts';
import { codecsFor } from '../engine/codecs.ts';
import { messages, run, runs, tokensInCache } from '../state/answering.ts';
import { send, startNew, stop } from '../state/chat.ts';
import { connection, type Progress } from '../state/connection.ts';
import { current } from '../state/conversations.ts';
import { gaugeOf } from '../state/gauge.ts';
import { announcement } from '../state/notice.ts';
import { texts } from '../texts/index.ts';
import { Alerts } from './alerts.tsx';
import { Composer } from './composer.tsx';
import { DeletionDialog } from './deletion.tsx';
import { Dialog } from './dialog.tsx';
import { DropTarget } from './drop-target.tsx';
import { CompareIcon, GaugeIcon, MenuIcon } from './icons.tsx';
import { Inspector } from './inspector.tsx';
import { createLate } from './late.ts';
import { LatePart } from './late-part.tsx';
import { ShortcutList, useShortcuts } from './shortcuts.tsx';
import { Sidebar } from './sidebar.tsx';
import { Thread } from './thread.tsx';
import { TransferDialog } from './transfer-dialog.tsx';
import { Unlock } from './unlock.tsx';

const lateComparison = createLate(() => import('../compare/compare.tsx'));

/** As in layout.css. */
const NARROW = '(max-width: 820px)';

export function App() {
  const isComparing = useSignal(false);
  const drawer = useSignal<'menu' | 'details' | undefined>(undefined);
  const closeDrawer = () => {
    drawer.value = undefined;
  };
  const toggleCompare = () => {
    isComparing.value = !isComparing.value;
    history.replaceState(null, '', location.pathname);
  };
  const showChat = () => {
    if (isComparing.value) toggleCompare();
    closeDrawer();
  };

  const write = () => document.getElementById('composer')?.focus();
  useShortcuts({
    stop() {
      stop();
      if (isComparing.value) lateComparison()?.stopComparing();
    },
    startNew() {
      startNew();
      showChat();
      write();
    },
    search() {
      // On a narrow screen the list is in a drawer, which has the field too.
      if (matchMedia(NARROW).matches) drawer.value = 'menu';
      else document.querySelector<HTMLElement>('.left [type=search]')?.focus();
    },
    write,
  });

  useEffect(() => {
    const openShared = () => {
      const address = readAddress(
        location.hash,
        codecsFor(true).map(({ name }) => name),
      );
      if (!address) return;
      isComparing.value = true;
      import('../compare/compare.tsx').then(
        ({ openAddress }) => openAddress(address),
        () => {
          // The comparison tells it.
        },
      );
    };
    openShared();
    addEventListener('hashchange', openShared);
    return () => removeEventListener('hashchange', openShared);
  }, []);

  useEffect(() => {
    document.title = current.value.title ? texts.app.title(current.value.title) : texts.app.name;
  }, [current.value.title]);

  return (
    <div class="app">
      <header class="top">
        <button
          type="button"
          class="icon-button narrow-only"
          aria-label={texts.app.conversations}
          onClick={() => {
            drawer.value = 'menu';
          }}
        >
          <MenuIcon />
        </button>
        <h1>
          <img src="./icon.svg" alt="" width="28" height="28" /> {texts.app.name}
        </h1>
        <button
          type="button"
          class="button slim compare-button"
          aria-pressed={isComparing.value}
          onClick={toggleCompare}
        >
          <CompareIcon /> <span>{texts.app.compare}</span>
        </button>
        <ModelBadge />
        <button
          type="button"
          class="icon-button medium-only"
          aria-label={texts.app.details}
          onClick={() => {
            drawer.value = 'details';
          }}
        >
          <GaugeIcon />
        </button>
      </header>
      <aside class="left wide-enough" aria-label={texts.app.saved}>
        <Sidebar onChoose={showChat} />
      </aside>
      <main>{isComparing.value ? <Comparison /> : <Body />}</main>
      <aside class="right wide-enough" aria-label={texts.app.details}>
        <Inspector />
      </aside>
      <Dialog kind="drawer" title={texts.app.conversations} isOpen={drawer.value === 'menu'} onClose={closeDrawer}>
        <Sidebar onChoose={showChat} />
      </Dialog>
      <Dialog kind="drawer" title={texts.app.details} isOpen={drawer.value === 'details'} onClose={closeDrawer}>
        <Inspector />
      </Dialog>
      <DeletionDialog />
      <ShortcutList />
      <TransferDialog />
      <DropTarget />
      <div class="hidden" role="status" aria-live="polite">
        {announcement.value}
      </div>
    </div>
  );
}

const Comparison = () => <LatePart part={lateComparison}>{({ Compare }) => <Compare />}</LatePart>;

/** What is saved can be read without the key. */
function Body() {
  const isLocked = connection.value.phase === 'locked';
  if (isLocked && messages.value.length === 0) return <Unlock />;
  return (
    <>
      <Thread />
      <div class="bottom">
        <Alerts />
        {isLocked ? (
          <Unlock />
        ) : (
          <Composer
            placeholder={messages.value.length > 0 ? texts.composer.reply : texts.composer.ask}
            isRunning={run.value !== undefined}
            onSend={() => void send()}
            onStop={stop}
          />
        )}
      </div>
    </>
  );
}

const describeProgress = (what: string, { done, total, secondsLeft }: Progress): string =>
  texts.app.progress(what, done, total, secondsLeft);

/** The model, and how full the context is. */
function ModelBadge() {
  const { phase, engine, detail, progress } = connection.value;
  const waitsFor = detail ?? texts.app.connecting;
  if (!engine || phase === 'opening')
    return (
      <p class="badge quiet">
        {(phase === 'failed' || phase === 'lost') && (
          <>
            <span class="dot failed" /> {phase === 'lost' ? texts.app.noServer : texts.app.noModel}
          </>
        )}
        {phase === 'opening' && (progress ? describeProgress(waitsFor, progress) : texts.app.waiting(waitsFor))}
      </p>
    );
  const { fraction } = gaugeOf(tokensInCache.value, engine.info);
  return (
    <p class="badge">
      <span class={runs.value.size > 0 ? 'dot running' : 'dot'} />
      <span class="badge-name">{engine.info.name}</span>
      <span class="chip">{engine.info.codec}</span>
      <span class="mini-meter" aria-hidden="true">
        <span style={{ width: `${100 * fraction}%` }} />
      </span>
    </p>
  );
}
