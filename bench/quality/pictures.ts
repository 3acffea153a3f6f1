/** The pictures of docs/quality.md, as SVG files beside it. */
import { layerPlot } from '../../src/eval/layer-plot.ts';
import { divergencePlot, type PlotPoint } from '../../src/eval/plot.ts';
import { formatCount } from '../../src/util/units.ts';
import { average, completeRows, findMeasurements, type LayerPair, modelName, type Results } from './results.ts';
import { suiteOf } from './sections.ts';
import { defaultTable, type Section } from './suite.ts';

export interface Picture {
  /** Where on the page it belongs. */
  part: 'tables' | 'norms' | 'layers';
  file: string;
  alt: string;
  svg: string;
}

/** `page`: the page's file name without its extension. */
export function drawPictures(results: Results, page: string): Picture[] {
  const title = results.setup.model;
  const table = defaultTable(suiteOf(results));
  const name = `${page}-${slug(modelName(results))}`;
  const pictures: Picture[] = [];
  const points = plotPoints(results, table);
  if (points.length > 0)
    pictures.push({
      part: 'tables',
      file: `${name}-bits.svg`,
      alt: 'Divergence against bits',
      svg: divergencePlot(points, { title, subtitle: plotSubtitle(results, table) }),
    });
  for (const [text, layers] of Object.entries(results.norms))
    pictures.push({
      part: 'norms',
      file: `${name}-norms-${slug(text)}.svg`,
      alt: `Errors of the first tokens, ${text}`,
      svg: layerPlot(
        layers[0].transforms.map(({ name }, i) => ({
          name,
          values: layers.map(({ transforms }) => 100 * transforms[i].firstError),
        })),
        { title, subtitle: `Largest error of the first four keys at 2 bits; ${text}`, unit: '% of the norm' },
      ),
    });
  for (const [probe, layers] of Object.entries(results.sensitivities))
    pictures.push({
      part: 'layers',
      file: `${name}-layers-${slug(probe)}.svg`,
      alt: `Sensitivity of the layers to ${probe}`,
      svg: layerPlot(bySide(layers), {
        title,
        subtitle: `The part of the divergence of ${probe} that the keys and values of a layer cause`,
        unit: 'nats per token',
      }),
    });
  for (const [spec, layers] of Object.entries(results.layerBits))
    pictures.push({
      part: 'layers',
      file: `${name}-bits-${slug(spec)}.svg`,
      alt: `Bits of the layers under ${spec}`,
      svg: layerPlot(bySide(layers), {
        title,
        subtitle: `Bits that ${spec} gives each layer`,
        unit: 'code bits per value',
      }),
    });
  return pictures;
}

/** The mean over all texts, for codecs that were measured on all of them. */
function plotPoints(results: Results, { entries, texts, rows }: Section): PlotPoint[] {
  return entries.flatMap(({ plan }) => {
    const found = texts.map(text => findMeasurements(results, plan, text, rows));
    if (rows === 0 || found.some(list => list.length < rows)) return [];
    return [{ kv: plan.kv, ...average(found.flat()) }];
  });
}

const plotSubtitle = (results: Results, { texts }: Section) =>
  `mean of ${texts.join(', ')}; ${completeRows(results)} x ${formatCount(results.setup.context)} tokens each, second ` +
  `halves scored; ${results.setup.device}`;

const bySide = (layers: readonly LayerPair[]) => [
  { name: 'keys', values: layers.map(({ key }) => key) },
  { name: 'values', values: layers.map(({ value }) => value) },
];

const slug = (name: string) => name.toLowerCase().replace(/[^a-z0-9]+/g, '-');
