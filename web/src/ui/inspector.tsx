/** What runs, and what it costs: the cache, the codec, the device, the speed. */
import { useEffect } from 'preact/hooks';
import type { ModelInfo } from '../engine/engine.ts';
import { formatBytes } from '../format.ts';
import { messages, run, tokensInCache } from '../state/answering.ts';
import { cacheUse, connection, refreshCacheUse } from '../state/connection.ts';
import { gaugeOf } from '../state/gauge.ts';
import { texts } from '../texts/index.ts';
import { AnswerSettings } from './answer-settings.tsx';
import { Bar } from './bar.tsx';
import { EnginePicker } from './engine-picker.tsx';
import { Marked } from './marked.tsx';
import { PageCard } from './page-card.tsx';
import { StorageCard } from './storage-card.tsx';

export function Inspector() {
  const { engine } = connection.value;
  return (
    <div class="inspector">
      {engine && <CacheGauge info={engine.info} />}
      {engine && <PageCard info={engine.info} />}
      {engine && <SpeedCard />}
      <EnginePicker />
      <AnswerSettings />
      {engine && <ModelCard info={engine.info} />}
      <StorageCard />
    </div>
  );
}

const NEARLY_FULL = 0.9;

/** Milliseconds between two readings while an answer runs. */
const REFRESH_MS = 2000;

function CacheGauge({ info }: { info: ModelInfo }) {
  const { tokens, bytes, f16Bytes, left, fraction } = gaugeOf(tokensInCache.value, info);
  const isRunning = run.value !== undefined;
  useEffect(() => {
    void refreshCacheUse();
    if (!isRunning) return;
    const timer = setInterval(() => void refreshCacheUse(), REFRESH_MS);
    return () => clearInterval(timer);
  }, [isRunning]);
  return (
    <section class="card" aria-labelledby="cache-title">
      <h2 id="cache-title">{texts.cache.title}</h2>
      <p class="figure">
        <Marked text={texts.cache.used(tokens, info.context)} as="strong" />
      </p>
      <span class="context-bar" aria-hidden="true">
        <span class={fraction > NEARLY_FULL ? 'nearly-full' : ''} style={{ width: `${100 * fraction}%` }} />
      </span>
      <p class="quiet">{texts.cache.left(left)}</p>
      {tokens > 0 && (
        <dl class="bars">
          <Bar name={info.codec} share={bytes / f16Bytes} text={formatBytes(bytes)} isAccent />
          {info.codec !== 'f16' && <Bar name="f16" share={1} text={formatBytes(f16Bytes)} />}
        </dl>
      )}
      {tokens > 0 && bytes < f16Bytes && <p class="quiet">{texts.cache.smaller(f16Bytes / bytes)}</p>}
      {cacheUse.value && <p class="quiet">{texts.cache.ofAll(cacheUse.value.used, cacheUse.value.capacity)}</p>}
    </section>
  );
}

function ModelCard({ info }: { info: ModelInfo }) {
  return (
    <details class="card">
      <summary>{texts.model.title}</summary>
      <dl class="facts">
        <dt>{texts.model.name}</dt>
        <dd>{info.name}</dd>
        <dt>{texts.model.device}</dt>
        <dd>
          {info.device === 'webgpu' ? texts.model.gpu : texts.model.cpu(info.device, info.threads)}
          <p class="quiet">{info.deviceReason}</p>
        </dd>
        <dt>{texts.model.codec}</dt>
        <dd>{texts.model.bitsPerValue(info.codec, info.bits)}</dd>
        {info.divergence !== undefined && (
          <>
            <dt>{texts.model.divergence}</dt>
            <dd>{texts.model.expected(info.divergence)}</dd>
          </>
        )}
      </dl>
      {info.notices.map(notice => (
        <p key={notice} class="notice">
          {notice}
        </p>
      ))}
    </details>
  );
}

function SpeedCard() {
  const last = messages.value.findLast(({ stats }) => stats)?.stats;
  const rate = run.value ? run.value.rate : (last?.decodeRate ?? 0);
  const read = last && last.promptTokens - last.reusedTokens;
  if (rate === 0 && !last) return null;
  return (
    <section class="card" aria-labelledby="speed-title">
      <h2 id="speed-title">{texts.speed.title}</h2>
      {rate > 0 && (
        <p class="figure">
          <strong>{texts.rate(rate)}</strong>
        </p>
      )}
      {last && read !== undefined && last.prefillSeconds > 0 && (
        <p class="quiet">{texts.speed.lastPrompt(read, last.prefillSeconds, last.reusedTokens)}</p>
      )}
    </section>
  );
}
