/** What people call a model: the name of its file. `general.name` is often a note on its training. */

const ENDINGS = [/\.gguf$/i, /-\d{5}-of-\d{5}$/, /:[\w.-]+$/, /-gguf$/i, /[-._](i?q\d\w*|b?f16|f32|mxfp4\w*)$/i];
/** They say nothing of the model. */
const COMMON = /^(ggml[-._])?(model|weights)?$/i;

/** `file`: a name, path or address of it, or a name of the hub. `generalName`: what the file says of itself. */
export function modelTitle(file: string, generalName?: string): string {
  const title = ENDINGS.reduce((name, ending) => name.replace(ending, ''), fileNameOf(file));
  const isTheSame = generalName?.toLowerCase() === title.toLowerCase();
  return generalName && (isTheSame || COMMON.test(title)) ? generalName : title;
}

/** The end of a path or address. */
export function fileNameOf(path: string): string {
  const name = path.split(/[?#]/)[0]!.split('/').at(-1) || path;
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}
