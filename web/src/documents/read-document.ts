/** The text of a file that the user adds: plain text, PDF or Word. Errors say in plain words what is wrong. */
import { texts } from '../texts/index.ts';

/** What the picker offers. */
export const ACCEPTED = 'text/*,.pdf,.docx,.md,.txt,.json,.ts,.js,.py,.c,.h,.rs,.go,.java,.csv,.xml,.yaml,.toml,.log';

const MAX_TEXT_BYTES = 20_000_000;
/** A PDF or Word document is mostly pictures. */
const MAX_DOCUMENT_BYTES = 200_000_000;

type Kind = 'text' | 'pdf' | 'docx';

/** `onProgress`: 0 to 1, for documents that take a while. */
export async function readDocument(file: File, onProgress: (fraction: number) => void): Promise<string> {
  const { name, size } = file;
  if (/\.gguf$/i.test(name)) throw new Error(texts.documents.isModel(name));
  const kind: Kind = /\.pdf$/i.test(name) ? 'pdf' : /\.docx$/i.test(name) ? 'docx' : 'text';
  const maxBytes = kind === 'text' ? MAX_TEXT_BYTES : MAX_DOCUMENT_BYTES;
  if (size > maxBytes) throw new Error(texts.documents.tooLarge(name, size, maxBytes));
  const bytes = await file.arrayBuffer().catch(() => {
    // It was changed or deleted after it had been chosen.
    throw new Error(texts.documents.unreadable(name));
  });
  const text = await textOf(kind, name, new Uint8Array(bytes), onProgress);
  if (text.trim() !== '') return text;
  throw new Error(kind === 'pdf' && size > 0 ? texts.documents.scanned(name) : texts.documents.empty(name));
}

async function textOf(
  kind: Kind,
  name: string,
  bytes: Uint8Array<ArrayBuffer>,
  onProgress: (fraction: number) => void,
): Promise<string> {
  if (kind === 'text') {
    const text = new TextDecoder().decode(bytes);
    if (text.includes('\0')) throw new Error(texts.documents.notText(name));
    return text;
  }
  const reader = await load(kind, name);
  try {
    return await reader(bytes, onProgress);
  } catch (error) {
    if ((error as Error).name === 'PasswordException' || (kind === 'docx' && isEncrypted(bytes)))
      throw new Error(texts.documents.encrypted(name));
    throw new Error(kind === 'pdf' ? texts.documents.notPdf(name) : texts.documents.notWord(name));
  }
}

type Reader = (bytes: Uint8Array<ArrayBuffer>, onProgress: (fraction: number) => void) => Promise<string>;

/** Loaded when the first document of its kind is added. */
async function load(kind: 'pdf' | 'docx', name: string): Promise<Reader> {
  try {
    return kind === 'pdf' ? (await import('./pdf.ts')).readPdf : (await import('./docx.ts')).readDocx;
  } catch {
    throw new Error(texts.documents.needsNetwork(name));
  }
}

/** An encrypted Word document, like one of Word 97, is a compound file instead of a zip archive. */
const isEncrypted = (bytes: Uint8Array): boolean => [0xd0, 0xcf, 0x11, 0xe0].every((byte, i) => bytes[i] === byte);
