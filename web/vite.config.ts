import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { defineConfig, type Plugin } from 'vite';

/** The server that `npm run web` forwards requests to. */
const server = process.env.KVASIR_SERVER ?? 'http://127.0.0.1:8080';
const apiPaths = ['/v1', '/status', '/tokenize', '/models'];

/** Tells the service worker which files there are. */
const listFiles = (): Plugin => ({
  name: 'list-files',
  generateBundle: {
    order: 'post',
    handler(_, bundle) {
      const worker = bundle['sw.js'];
      if (worker?.type !== 'chunk') throw new Error('The service worker is missing.');
      const files = Object.keys(bundle).filter(name => name.startsWith('assets/'));
      worker.code = worker.code.replace('__FILES__', () => JSON.stringify(files));
    },
  },
});

/** The app imports the package by its name, as others do. */
const { exports }: { exports: Record<string, { default: string }> } = JSON.parse(
  readFileSync(new URL('../package.json', import.meta.url), 'utf8'),
);
const alias = Object.entries(exports).map(([name, { default: file }]) => ({
  find: new RegExp(`^kvasir${name.slice(1)}$`),
  replacement: fileURLToPath(new URL(`../${file}`, import.meta.url)),
}));

export default defineConfig({
  root: fileURLToPath(new URL('.', import.meta.url)),
  // The app runs in any folder of a host.
  base: './',
  build: {
    outDir: '../dist/web',
    emptyOutDir: true,
    target: 'es2022',
    reportCompressedSize: false,
    // Browsers that run models preload modules by themselves.
    modulePreload: { polyfill: false },
    // Of the libraries that the app contains.
    license: { fileName: 'licenses.txt' },
    rollupOptions: {
      checks: { pluginTimings: false },
      input: {
        index: fileURLToPath(new URL('index.html', import.meta.url)),
        sw: fileURLToPath(new URL('src/sw.ts', import.meta.url)),
      },
      output: { entryFileNames: ({ name }) => (name === 'sw' ? 'sw.js' : 'assets/[name]-[hash].js') },
    },
  },
  resolve: { alias },
  worker: { format: 'es' },
  plugins: [listFiles()],
  server: {
    proxy: Object.fromEntries(apiPaths.map(path => [path, server])),
    headers: {
      'cross-origin-opener-policy': 'same-origin',
      'cross-origin-embedder-policy': 'require-corp',
    },
  },
});
