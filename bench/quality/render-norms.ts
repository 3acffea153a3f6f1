/** Tables of the norms and errors of a text's first keys. */
import { markdownTable } from './markdown.ts';
import type { LayerNorms } from './results.ts';

export const ABOUT_NORMS =
  "Keys of a text's first four tokens: their norms over the median of the later ones; the share of a channel's range " +
  'over the first 32 tokens that only these four need; and the error of a key at 2 bits over its norm, the largest of ' +
  'the four / the median of the later ones. Keys are quantized as they are (KIVI), or after one or both parts of OScaR. ' +
  'Without scaling, all tokens of a group have the same absolute error, which is large for a sink with a small norm, ' +
  'and sinks get much of the attention. Scaling gives every token an error in proportion to its norm.';

export function renderNorms(text: string, layers: readonly LayerNorms[]): string[] {
  const [{ norms: first, transforms }] = layers;
  const percent = (share: number) => `${(100 * share).toFixed(0)} %`;
  const names = transforms.map(({ name }) => name);
  return [
    `Norms and shares, ${text}:`,
    markdownTable(
      ['layer', ...first.map((_, token) => `token ${token}`), ...names],
      layers.map(({ norms, transforms }, layer) => [
        String(layer),
        ...norms.map(norm => norm.toFixed(2)),
        ...transforms.map(({ share }) => percent(share)),
      ]),
    ),
    `Errors, ${text}:`,
    markdownTable(
      ['layer', ...names],
      layers.map(({ transforms }, layer) => [
        String(layer),
        ...transforms.map(({ firstError, laterError }) => `${percent(firstError)} / ${percent(laterError)}`),
      ]),
    ),
  ];
}
