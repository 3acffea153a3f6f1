/** What runs, and what it costs: the cache, the codec, the device, the speed. */
import { useEffect } from 'preact/hooks';
import type { ModelInfo } from '../engine/engine.ts';
import { formatBytes, formatCount, formatRate, formatSmall } from '../format.ts';
import { messages, run, tokensInCache } from '../state/answering.ts';
import { cacheUse, connection, refreshCacheUse } from '../state/connection.ts';
import { gaugeOf } from '../state/gauge.ts';
import { AnswerSettings } from './answer-settings.tsx';
import { Bar } from './bar.tsx';
import { EnginePicker } from './engine-picker.tsx';
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
      <h2 id="cache-title">Cache</h2>
      <p class="figure">
        <strong>{formatCount(tokens)}</strong> of {formatCount(info.context)} tokens
      </p>
      <span class="context-bar" aria-hidden="true">
        <span class={fraction > NEARLY_FULL ? 'nearly-full' : ''} style={{ width: `${100 * fraction}%` }} />
      </span>
      <p class="quiet">{formatCount(left)} tokens still fit</p>
      {tokens > 0 && (
        <dl class="bars">
          <Bar name={info.codec} share={bytes / f16Bytes} text={formatBytes(bytes)} isAccent />
          {info.codec !== 'f16' && <Bar name="f16" share={1} text={formatBytes(f16Bytes)} />}
        </dl>
      )}
      {tokens > 0 && bytes < f16Bytes && (
        <p class="quiet">{(f16Bytes / bytes).toFixed(1)} times smaller than a 16-bit cache</p>
      )}
      {cacheUse.value && (
        <p class="quiet">
          All conversations: {formatBytes(cacheUse.value.used)} of {formatBytes(cacheUse.value.capacity)}
        </p>
      )}
    </section>
  );
}

function ModelCard({ info }: { info: ModelInfo }) {
  return (
    <details class="card">
      <summary>Model and device</summary>
      <dl class="facts">
        <dt>Name</dt>
        <dd>{info.name}</dd>
        <dt>Device</dt>
        <dd>
          {describeDevice(info)}
          <p class="quiet">{info.deviceReason}</p>
        </dd>
        <dt>Cache codec</dt>
        <dd>
          {info.codec}, {info.bits.toFixed(2)} bits per value
        </dd>
        {info.divergence !== undefined && (
          <>
            <dt>Divergence</dt>
            <dd>{formatSmall(info.divergence)} nats per token, expected</dd>
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

function describeDevice({ device, threads }: ModelInfo): string {
  if (device === 'webgpu') return 'GPU (WebGPU)';
  return `CPU (${device}), ${threads} thread${threads === 1 ? '' : 's'}`;
}

function SpeedCard() {
  const last = messages.value.findLast(({ stats }) => stats)?.stats;
  const rate = run.value ? run.value.rate : (last?.decodeRate ?? 0);
  const read = last && last.promptTokens - last.reusedTokens;
  if (rate === 0 && !last) return null;
  return (
    <section class="card" aria-labelledby="speed-title">
      <h2 id="speed-title">Speed</h2>
      {rate > 0 && (
        <p class="figure">
          <strong>{formatRate(rate)}</strong>
        </p>
      )}
      {last && read !== undefined && last.prefillSeconds > 0 && (
        <p class="quiet">
          Last prompt: {formatCount(read)} token{read === 1 ? '' : 's'} read in {last.prefillSeconds.toFixed(1)} s
          {last.reusedTokens > 0 && `, ${formatCount(last.reusedTokens)} reused`}
        </p>
      )}
    </section>
  );
}
