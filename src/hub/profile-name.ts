/** The file names that a model's profile may have next to the model, or next to it in a repository. */

const PART = /-\d{5}-of-\d{5}$/;

/**
 * For `model-Q8_0.gguf`: `model-Q8_0.kvprofile`, then `model-Q8_0.gguf.kvprofile`. For a part of a split model, also
 * without the part's number, first of all.
 */
export function profileNames(modelFile: string): string[] {
  const stem = modelFile.replace(/\.gguf$/i, '');
  return [...new Set([stem.replace(PART, ''), stem, modelFile])].map(name => `${name}.kvprofile`);
}
