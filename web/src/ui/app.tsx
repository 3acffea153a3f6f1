/** The page: conversations, the one that is shown, and what runs. */
import { useSignal } from '@preact/signals';
import { useEffect } from 'preact/hooks';
import { announcement, current, run, stop, tokensInCache } from '../state/chat.ts';
import { connection, reconnect } from '../state/connection.ts';
import { gaugeOf } from '../state/gauge.ts';
import { Composer } from './composer.tsx';
import { Drawer } from './drawer.tsx';
import { DropTarget } from './drop-target.tsx';
import { GaugeIcon, MenuIcon } from './icons.tsx';
import { Inspector } from './inspector.tsx';
import { Sidebar } from './sidebar.tsx';
import { Thread } from './thread.tsx';
import { Unlock } from './unlock.tsx';

export function App() {
  const draft = useSignal('');
  const drawer = useSignal<'menu' | 'details' | undefined>(undefined);
  const closeDrawer = () => {
    drawer.value = undefined;
  };

  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key === 'Escape') stop();
    };
    addEventListener('keydown', onKeyDown);
    return () => removeEventListener('keydown', onKeyDown);
  }, []);

  useEffect(() => {
    document.title = current.value.title ? `${current.value.title} – Kvasir` : 'Kvasir';
  }, [current.value.title]);

  return (
    <div class="app">
      <header class="top">
        <button
          type="button"
          class="icon-button narrow-only"
          aria-label="Conversations"
          onClick={() => {
            drawer.value = 'menu';
          }}
        >
          <MenuIcon />
        </button>
        <h1>
          <img src="./icon.svg" alt="" width="28" height="28" /> Kvasir
        </h1>
        <ModelBadge />
        <button
          type="button"
          class="icon-button medium-only"
          aria-label="Cache and model"
          onClick={() => {
            drawer.value = 'details';
          }}
        >
          <GaugeIcon />
        </button>
      </header>
      <aside class="left wide-enough" aria-label="Saved conversations">
        <Sidebar />
      </aside>
      <main>
        <Body draft={draft} />
      </main>
      <aside class="right wide-enough" aria-label="Cache and model">
        <Inspector />
      </aside>
      <Drawer title="Conversations" isOpen={drawer.value === 'menu'} onClose={closeDrawer}>
        <Sidebar onChoose={closeDrawer} />
      </Drawer>
      <Drawer title="Cache and model" isOpen={drawer.value === 'details'} onClose={closeDrawer}>
        <Inspector />
      </Drawer>
      <DropTarget />
      <div class="hidden" role="status" aria-live="polite">
        {announcement.value}
      </div>
    </div>
  );
}

function Body({ draft }: { draft: { value: string } }) {
  const { phase, detail } = connection.value;
  if (phase === 'locked') return <Unlock />;
  return (
    <>
      <Thread draft={draft} />
      <div class="bottom">
        {phase === 'failed' && (
          <div class="problem-row" role="alert">
            <p class="problem">{detail}</p>
            <button type="button" class="button" onClick={() => void reconnect()}>
              Try again
            </button>
          </div>
        )}
        <Composer draft={draft} />
      </div>
    </>
  );
}

/** The model, and how full the context is. */
function ModelBadge() {
  const { phase, engine, detail, progress } = connection.value;
  if (!engine)
    return (
      <p class="badge quiet">
        {phase === 'opening' && `${detail ?? 'Connecting'}${progress ? ` ${Math.round(100 * progress)} %` : '…'}`}
      </p>
    );
  const { fraction } = gaugeOf(tokensInCache.value, engine.info);
  return (
    <p class="badge">
      <span class={run.value ? 'dot running' : 'dot'} />
      <span class="badge-name">{engine.info.name}</span>
      <span class="chip">{engine.info.codec}</span>
      <span class="mini-meter" aria-hidden="true">
        <span style={{ width: `${100 * fraction}%` }} />
      </span>
    </p>
  );
}
