/** The sections of results, as far as they were measured. */
import { completeRows, DEFAULT_PROFILE, planId, type Results } from './results.ts';
import { createSuite, type Section } from './suite.ts';

export const transferProfiles = ({ profiles }: Results): string[] =>
  Object.keys(profiles).filter(name => name !== DEFAULT_PROFILE);

export const suiteOf = (results: Results): Section[] =>
  createSuite({
    texts: Object.keys(results.texts),
    rows: completeRows(results),
    headDim: results.setup.headDim,
    codecs: results.codecs,
    transfer: transferProfiles(results),
  });

export function measuredSections(results: Results): Section[] {
  const all = suiteOf(results);
  const tables = all.filter(({ part }) => part === 'tables');
  const inTables = new Set(tables.flatMap(planIds));
  return all.flatMap(section => {
    const ids = new Set(planIds(section));
    // Ablations share plans with the tables: one was measured if any other plan of it was, maybe on fewer rows or texts.
    const own = results.measurements.filter(
      one => ids.has(planId(one)) && (section.part === 'tables' || !inTables.has(planId(one))),
    );
    if (own.length === 0) return [];
    if (section.part === 'tables') return [section];
    const texts = new Set(own.map(({ text }) => text));
    return [
      {
        ...section,
        texts: Object.keys(results.texts).filter(text => texts.has(text)),
        rows: Math.min(section.rows, 1 + Math.max(...own.map(({ row }) => row))),
      },
    ];
  });
}

const planIds = ({ entries }: Section): string[] => entries.map(({ plan }) => planId(plan));
