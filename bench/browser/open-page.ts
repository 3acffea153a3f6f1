/** A cross-origin isolated page of headless Chromium with the package's build for browsers, a model and, if asked for, wllama. */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { InputError } from '../../src/util/errors.ts';
import { ISOLATED, noChromium, openBrowser, openSite } from '../../test/browsers/chromium.ts';
import type * as functions from './page.ts';

type Functions = Omit<typeof functions, 'WINDOW'>;

export interface BenchPage {
  /** Calls a function of page.ts there. */
  call<Name extends keyof Functions>(
    name: Name,
    argument: Parameters<Functions[Name]>[0],
  ): Promise<Awaited<ReturnType<Functions[Name]>>>;
  close(): Promise<void>;
}

/** The last version that decodes tokens one by one; later ones only complete texts. */
const WLLAMA_VERSION = '2.4.0';
export const INSTALL_WLLAMA = `npm install --prefix DIR @wllama/wllama@${WLLAMA_VERSION}`;

export async function openPage(modelPath: string, wllamaFolder?: string): Promise<BenchPage> {
  if (noChromium) throw new InputError(`There is ${noChromium}. Install Chromium, or set CHROMIUM to its path.`);
  const scripts = { '/page.js': readFileSync(new URL('./page.js', import.meta.url), 'utf8') };
  // The bench runs from the repository's root.
  for (const name of readdirSync('dist/browser'))
    Object.assign(scripts, { [`/kvasir/${name}`]: readText('dist/browser', name) });
  const files = { '/model.gguf': new Uint8Array(readFileSync(modelPath)) };
  if (wllamaFolder !== undefined) addWllama(wllamaFolder, scripts, files);
  const site = await openSite(scripts, files);
  Object.assign(site.headers, ISOLATED);
  const browser = await openBrowser();
  const { page } = browser;
  await page.goto(site.address);
  return {
    // As text: in code, the compiler would replace the import by a function that the page does not have.
    call: (name, argument) =>
      page.evaluate(`import('/page.js').then(page => page.${name}(${JSON.stringify(argument)}))`),
    async close() {
      await browser.close();
      site.close();
    },
  };
}

const readText = (folder: string, name: string) => readFileSync(join(folder, name), 'utf8');

function addWllama(folder: string, scripts: Record<string, string>, files: Record<string, Uint8Array>): void {
  const build = join(folder, 'node_modules/@wllama/wllama/esm');
  const wasm = ['single-thread/wllama.wasm', 'multi-thread/wllama.wasm'];
  if (!wasm.every(name => existsSync(join(build, name))))
    throw new InputError(`There is no wllama ${WLLAMA_VERSION} in ${folder}. Install it: ${INSTALL_WLLAMA}`);
  scripts['/wllama/index.js'] = readText(build, 'index.js');
  for (const name of wasm) files[`/wllama/${name}`] = new Uint8Array(readFileSync(join(build, name)));
}
