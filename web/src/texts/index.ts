/** The texts of the app, in the first language of the browser that there is a table for; else in English. */
import { english, type Texts } from './english.ts';

/** By language. A translation is one more file, and one more entry here. */
const TABLES: ReadonlyMap<string, Texts> = new Map([['en', english]]);

/** The first of these languages, such as `de` for `de-AT`, that is among the tables; else `en`. */
export const chooseLanguage = (wanted: readonly string[], tables: Pick<ReadonlySet<string>, 'has'>): string =>
  wanted.map(name => name.split('-')[0]!.toLowerCase()).find(name => tables.has(name)) ?? 'en';

const language = chooseLanguage(globalThis.navigator?.languages ?? [], TABLES);

export const texts: Texts = TABLES.get(language) ?? english;

// Screen readers speak it, and numbers are written as in it.
if (globalThis.document) document.documentElement.lang = language;
