/** A GGUF file by its first bytes, told apart from what is often given in its place. */
import { FormatError, UnsupportedError } from '../errors.ts';

const convert = 'Take a .gguf version of the model, or convert it with llama.cpp (convert_hf_to_gguf.py).';
const fetchAgain = 'Fetch it again.';

interface Other {
  /** Whether these are its first bytes, one character per byte. */
  begins: (text: string) => boolean;
  is: string;
  advice: string;
  /** A model all the same, of a kind that is not supported. */
  model?: true;
}

const withAny =
  (...starts: readonly string[]) =>
  (text: string) =>
    starts.some(start => text.startsWith(start));
const like = (pattern: RegExp) => (text: string) => pattern.test(text);

const others: readonly Other[] = [
  // The length of its header in eight bytes, then that header, which is JSON.
  { begins: text => text.startsWith('\0\0{"', 6), is: 'a safetensors file', advice: convert, model: true },
  { begins: withAny('PK\x03\x04'), is: 'a zip archive, such as a PyTorch checkpoint', advice: convert, model: true },
  {
    begins: withAny('\x80\x02', '\x80\x03', '\x80\x04', '\x80\x05'),
    is: 'a pickle, such as an old PyTorch checkpoint',
    advice: convert,
    model: true,
  },
  {
    begins: withAny('lmgg', 'tjgg', 'fmgg', 'algg'),
    is: 'a model file from before GGUF',
    advice: convert,
    model: true,
  },
  { begins: withAny('version https://git-lfs'), is: 'a Git LFS pointer', advice: 'Run git lfs pull.' },
  { begins: withAny('FUGG'), is: 'a GGUF file with the order of its bytes swapped', advice: fetchAgain },
  {
    begins: like(/^\s*<(!doctype|html|head|\?xml)/i),
    is: 'a web page',
    advice: 'The link may lead to a page about the file: fetch the file itself.',
  },
  { begins: like(/^\s*[{[]\s*["\]}[{]/), is: 'JSON text', advice: 'Give the .gguf file.' },
  {
    begins: withAny('\x1f\x8b', '\x28\xb5\x2f\xfd', 'BZh', '\xfd7zXZ', '7z\xbc\xaf'),
    is: 'a compressed file',
    advice: 'Unpack it first.',
  },
  { begins: withAny('\0'.repeat(8)), is: 'empty space, as in an unfinished download', advice: fetchAgain },
];

/** How many bytes of a file `checkMagic` looks at. */
export const magicBytes = 64;

/** Throws unless `head`, the first bytes of a file, may be those of a GGUF file. */
export function checkMagic(head: Uint8Array, name: string): void {
  const text = String.fromCharCode(...head.subarray(0, magicBytes));
  if (text.startsWith('GGUF') && text.length >= 8) return;
  if (text === '') throw new FormatError(`${name} is empty. ${fetchAgain}`);
  if ('GGUF'.startsWith(text.slice(0, 4)))
    throw new FormatError(`${name} has only ${text.length} bytes, too few for a GGUF file. ${fetchAgain}`);
  const other = others.find(({ begins }) => begins(text));
  if (!other)
    throw new FormatError(
      `${name} is not a GGUF file (it begins with ${JSON.stringify(text.slice(0, 8))}). Give a .gguf file.`,
    );
  const message = `${name} is not a GGUF file: it is ${other.is}. ${other.advice}`;
  throw other.model ? new UnsupportedError(message) : new FormatError(message);
}
