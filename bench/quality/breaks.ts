/** Which codecs fail on which model: the worst kind of text of each. */
import { formatShort } from '../../src/cli/table.ts';
import { markdownTable, paragraph } from './markdown.ts';
import { modelName, type Results } from './results.ts';
import { suiteOf } from './sections.ts';
import { defaultTable } from './suite.ts';
import { meanOf } from './tables.ts';

/** In nats per token. */
const [NONSENSE, WORSE] = [0.5, 0.1];

interface Worst {
  text: string;
  kld: number;
}

export function renderBreaks(models: readonly Results[]): string[] {
  const worst = models.map(worstTexts);
  const largest = (kv: string) => Math.max(...worst.map(codecs => codecs.get(kv)?.kld ?? 0));
  const codecs = [...new Set(worst.flatMap(codecs => [...codecs.keys()]))]
    .filter(kv => largest(kv) > WORSE)
    .sort((a, b) => largest(b) - largest(a));
  if (codecs.length === 0) return [];
  return [
    '## Which codec breaks on which model',
    paragraph(
      `Codecs with a divergence above ${formatShort(WORSE)} on any kind of text (default window), the worst first, with ` +
        `their worst kind of text. As a rule of thumb, answers are visibly worse above ${formatShort(WORSE)}, and become ` +
        `nonsense above ${formatShort(NONSENSE)} (bold). \`ok\`: at most ${formatShort(WORSE)} on all kinds.`,
    ),
    markdownTable(
      ['codec', ...models.map(modelName)],
      codecs.map(kv => [`\`${kv}\``, ...worst.map(codecs => formatWorst(codecs.get(kv)))]),
    ),
    paragraph(WHY),
  ];
}

const WHY =
  'Codecs of the fewest bits are coarse on any model. Where `-raw` breaks and the same codec without it holds, the cause ' +
  'is the constant part of the keys, which is large in models with a bias on K (Qwen 2 and 2.5). A codec that shares a ' +
  'scale between channels spends its levels on it, unless it stores the mean of each page and codes the rest; the ' +
  'variants `-raw` do not, as published.';

function formatWorst(worst: Worst | undefined): string {
  if (!worst) return '-';
  if (worst.kld <= WORSE) return 'ok';
  const kld = formatShort(Number(worst.kld.toPrecision(2)));
  return `${worst.kld > NONSENSE ? `**${kld}**` : kld} ${worst.text}`;
}

/** By codec of the default table. */
function worstTexts(results: Results): Map<string, Worst> {
  const { entries, texts, rows } = defaultTable(suiteOf(results));
  return new Map(
    entries.flatMap(({ plan }) => {
      const found = texts.flatMap(text => {
        const mean = meanOf(results, plan, text, rows);
        return mean ? [{ text, kld: mean.kld }] : [];
      });
      return found.length > 0 ? [[plan.kv, found.reduce((a, b) => (b.kld > a.kld ? b : a))] as const] : [];
    }),
  );
}
