/** A page of the cache in bytes: what its codec stores, each part as wide as its share. */
import type { ModelInfo, PageField } from '../engine/engine.ts';
import { formatBytes } from '../format.ts';
import { texts } from '../texts/index.ts';

export function PageCard({ info: { codec, pageTokens, pageFields } }: { info: ModelInfo }) {
  const total = sumOf(pageFields);
  return (
    <details class="card">
      <summary>{texts.page.title}</summary>
      <p class="quiet">{texts.page.about(pageTokens, codec, total)}</p>
      {(['keys', 'values'] as const).map(side => (
        <PageSide
          key={side}
          title={texts.page.sides[side]}
          fields={pageFields.filter(field => field.side === side)}
          total={total}
        />
      ))}
    </details>
  );
}

function PageSide({ title, fields, total }: { title: string; fields: readonly PageField[]; total: number }) {
  return (
    <section aria-label={title}>
      <h3>{title}</h3>
      <div class="page-bar" aria-hidden="true">
        {fields.map(({ name, bytes }, i) => (
          <span key={name} class={`part-${i % 4}`} style={{ flexGrow: bytes / total }} />
        ))}
      </div>
      <ul class="page-parts">
        {fields.map(({ name, bytes, about }, i) => (
          <li key={name}>
            <span class={`swatch part-${i % 4}`} /> <strong>{name}</strong> {formatBytes(bytes)}
            <p class="quiet">{about}</p>
          </li>
        ))}
      </ul>
    </section>
  );
}

const sumOf = (fields: readonly PageField[]): number => fields.reduce((sum, { bytes }) => sum + bytes, 0);
