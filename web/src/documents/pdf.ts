/** The text of a PDF document, by pdf.js, whose Worker is a file of the app. */
import { getDocument, PDFWorker } from 'pdfjs-dist/legacy/build/pdf.mjs';
// The build for older browsers: the other one needs functions of the newest.
import Port from 'pdfjs-dist/legacy/build/pdf.worker.min.mjs?worker';

/** The text by pages. `onProgress`: 0 to 1. Throws a `PasswordException` if it is encrypted. */
export async function readPdf(bytes: Uint8Array<ArrayBuffer>, onProgress: (fraction: number) => void): Promise<string> {
  const port = new Port();
  const task = getDocument({
    data: bytes,
    worker: PDFWorker.create({ port }),
    // Only the text is needed: no code is made from fonts, and none of them is loaded.
    ...{ isEvalSupported: false, disableFontFace: true, useSystemFonts: false, useWasm: false, verbosity: 0 },
  });
  try {
    const document = await task.promise;
    const pages: string[] = [];
    for (let number = 1; number <= document.numPages; number++) {
      const page = await document.getPage(number);
      const { items } = await page.getTextContent();
      pages.push(items.map(item => ('str' in item ? item.str + (item.hasEOL ? '\n' : '') : '')).join(''));
      page.cleanup();
      onProgress(number / document.numPages);
    }
    return pages
      .map(page => page.trim())
      .filter(Boolean)
      .join('\n\n');
  } finally {
    await task.destroy();
    port.terminate();
  }
}
