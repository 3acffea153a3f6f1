/** Joins results of several runs, which may have measured different models, texts and codecs. */
import { InputError } from '../../src/util/errors.ts';
import { type Measurement, planId, type Results } from './results.ts';

/** One entry per model, the largest first. */
export function mergeModels(all: readonly Results[]): Results[] {
  const models = new Map<string, Results>();
  for (const one of all) {
    const known = models.get(one.setup.model);
    models.set(one.setup.model, known ? mergeResults(known, one) : one);
  }
  return [...models.values()].sort((a, b) => b.setup.parameters - a.setup.parameters);
}

/** Everything of `a` and `b`. Their model, device, and the texts and profiles that both have must be the same. */
export function mergeResults(a: Results, b: Results): Results {
  checkSame('setup', { setup: a.setup }, { setup: b.setup });
  checkSame('text', a.texts, b.texts);
  checkSame('profile', a.profiles, b.profiles);
  const measurements = new Map([...a.measurements, ...b.measurements].map(one => [measurementId(one), one]));
  const measured = new Set([...measurements.values()].map(planId));
  const prefill = new Map([...a.prefill, ...b.prefill].map(one => [one.kv, one]));
  return {
    setup: a.setup,
    codecs: [...new Set([...a.codecs, ...b.codecs])],
    texts: { ...a.texts, ...b.texts },
    profiles: { ...a.profiles, ...b.profiles },
    // What one run lacked a profile for may have been measured by the other.
    refused: Object.fromEntries(Object.entries({ ...a.refused, ...b.refused }).filter(([plan]) => !measured.has(plan))),
    measurements: [...measurements.values()],
    prefill: [...prefill.values()],
    norms: { ...a.norms, ...b.norms },
    sensitivities: { ...a.sensitivities, ...b.sensitivities },
    layerBits: { ...a.layerBits, ...b.layerBits },
  };
}

/** Numbers of different texts, models or profiles must not end up in one table. */
function checkSame(what: string, a: object, b: object): void {
  const others = new Map(Object.entries(b));
  for (const [name, value] of Object.entries(a)) {
    const other = others.get(name);
    if (other === undefined || sameFields(value, other)) continue;
    throw new InputError(
      `The results have another ${what === name ? what : `${what} "${name}"`}: ${JSON.stringify(value)}, not ` +
        `${JSON.stringify(other)}. Use another --out, or delete the old results.`,
    );
  }
}

const sameFields = (a: object, b: object) =>
  JSON.stringify(Object.entries(a).sort()) === JSON.stringify(Object.entries(b).sort());

const measurementId = (measurement: Measurement) => [measurement.text, measurement.row, planId(measurement)].join(' ');
