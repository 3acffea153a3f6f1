/** Recognizes a GGUF file by its first bytes, and names other formats that users often pass instead. */
import { FormatError, UnsupportedError } from '../util/errors.ts';

const convert = 'Use a .gguf version of the model, or convert it with llama.cpp (convert_hf_to_gguf.py).';
const downloadAgain = 'Download it again.';

interface ForeignFormat {
  /** Tests the first bytes of a file, given as one character per byte. */
  test: (text: string) => boolean;
  name: string;
  advice: string;
  /** A model in a format that is not supported. */
  isModel?: true;
}

const startsWith =
  (...starts: readonly string[]) =>
  (text: string) =>
    starts.some(start => text.startsWith(start));
const matches = (pattern: RegExp) => (text: string) => pattern.test(text);

const foreignFormats: readonly ForeignFormat[] = [
  // Eight bytes of header length, then the header as JSON.
  { test: text => text.startsWith('\0\0{"', 6), name: 'a safetensors file', advice: convert, isModel: true },
  {
    test: startsWith('PK\x03\x04'),
    name: 'a zip archive, such as a PyTorch checkpoint',
    advice: convert,
    isModel: true,
  },
  {
    test: startsWith('\x80\x02', '\x80\x03', '\x80\x04', '\x80\x05'),
    name: 'a pickle, such as an old PyTorch checkpoint',
    advice: convert,
    isModel: true,
  },
  {
    test: startsWith('lmgg', 'tjgg', 'fmgg', 'algg'),
    name: 'a GGML model file from before GGUF',
    advice: convert,
    isModel: true,
  },
  { test: startsWith('version https://git-lfs'), name: 'a Git LFS pointer', advice: 'Run git lfs pull.' },
  { test: startsWith('FUGG'), name: 'a GGUF file with swapped byte order', advice: downloadAgain },
  {
    test: matches(/^\s*<(!doctype|html|head|\?xml)/i),
    name: 'a web page',
    advice: 'The link may point to a page about the file: download the file itself.',
  },
  { test: matches(/^\s*[{[]\s*["\]}[{]/), name: 'JSON text', advice: 'Pass the .gguf file.' },
  {
    test: startsWith('\x1f\x8b', '\x28\xb5\x2f\xfd', 'BZh', '\xfd7zXZ', '7z\xbc\xaf'),
    name: 'a compressed file',
    advice: 'Unpack it first.',
  },
  { test: startsWith('\0'.repeat(8)), name: 'all zeros, as in an incomplete download', advice: downloadAgain },
];

/** Bytes at the start of a file that the check looks at. */
const magicCheckBytes = 64;

/** Throws unless `head`, the first bytes of a file, can be the start of a GGUF file. */
export function checkGgufMagic(head: Uint8Array, fileName: string): void {
  const text = String.fromCharCode(...head.subarray(0, magicCheckBytes));
  if (text.startsWith('GGUF') && text.length >= 8) return;
  if (text === '') throw new FormatError(`${fileName} is empty. ${downloadAgain}`);
  if ('GGUF'.startsWith(text.slice(0, 4)))
    throw new FormatError(
      `${fileName} has only ${text.length} bytes, which is too short for a GGUF file. ${downloadAgain}`,
    );
  const other = foreignFormats.find(({ test }) => test(text));
  if (!other)
    throw new FormatError(
      `${fileName} is not a GGUF file (it starts with ${JSON.stringify(text.slice(0, 8))}). Pass a .gguf file.`,
    );
  const message = `${fileName} is not a GGUF file: it is ${other.name}. ${other.advice}`;
  throw other.isModel ? new UnsupportedError(message) : new FormatError(message);
}
