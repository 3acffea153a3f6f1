/**
 * Parses model names (`org/repo`, `org/repo:Q4_K_M`, `org/repo/file.gguf`) and GGUF file names
 * (`qwen-q4_k_m-00001-of-00003.gguf`), which contain the quantization and the part number.
 */
import { InputError } from '../util/errors.ts';

export interface ModelName {
  /** `org/repo` */
  repo: string;
  /** Quantization as the user wrote it; case does not matter. */
  quant?: string;
  /** A path in the repository. */
  file?: string;
}

/** One model of a repository: a file, or all parts of a split model. */
export interface GgufModel {
  /** The first part. */
  file: string;
  /** `Q4_K_M`, in upper case; undefined if the file name does not contain it. */
  quant?: string;
  /** In order; fewer than `partCount` if some are missing. */
  parts: string[];
  partCount: number;
}

const namePattern = /^(?:hf:)?([\w.-]{1,96}\/[\w.-]{1,96})(?::([\w.-]{1,64})|\/(.+\.gguf))?$/i;
const profileNamePattern = /^(?:hf:)?([\w.-]{1,96}\/[\w.-]{1,96})(?:[:/](.+\.kvprofile))?$/i;
const quantPattern = /(?:^|[-._/])((?:UD-)?(?:I?Q|TQ)\d(?:_[A-Z0-9]+)*|MXFP\d(?:_[A-Z0-9]+)*|BF16|FP?16|FP?32)$/i;
const partPattern = /-(\d{5})-of-(\d{5})(?=\.gguf$)/i;

/** Parses a hub name; undefined if it can only be a path (`./model.gguf`, `models/model.gguf`). */
export function parseModelName(text: string): ModelName | undefined {
  const match = namePattern.exec(text);
  if (!match) return undefined;
  const [, repo, quant, file] = match;
  if (!isRepoName(repo) || (file !== undefined && !isSafePath(file))) return undefined;
  return { repo, quant, file };
}

export function requireModelName(text: string): ModelName {
  const name = parseModelName(text);
  if (name) return name;
  throw new InputError(`'${text}' is not a model name on the hub: use org/repo, org/repo:Q4_K_M or org/repo/file.gguf`);
}

/** A profile on the hub. */
export interface ProfileName {
  /** `org/repo` */
  repo: string;
  /** A path in the repository. */
  file?: string;
}

/** Parses `org/repo`, `org/repo:file.kvprofile` or `org/repo/file.kvprofile`; undefined if it can only be a path. */
export function parseProfileName(text: string): ProfileName | undefined {
  const [, repo, file] = profileNamePattern.exec(text) ?? [];
  if (repo === undefined || !isRepoName(repo) || (file !== undefined && !isSafePath(file))) return undefined;
  return { repo, file };
}

/** The hub forbids `--` and `..` in names, and the cache's folder names depend on that. */
function isRepoName(repo: string): boolean {
  return repo.split('/').every(part => /^[a-z0-9_]/i.test(part) && !/--|\.\.|\.(gguf|kvprofile)$/i.test(part));
}

/** A branch, tag or commit. It becomes a path under refs/, so it must not leave that folder. */
export function checkRevision(revision: string): string {
  const parts = revision.split('/');
  if (revision.length <= 200 && parts.every(part => /^[\w][\w.+-]*$/.test(part) && !part.includes('..')))
    return revision;
  throw new InputError(`'${revision}' is not a revision: use a branch, tag or commit, such as main`);
}

/** Whether an untrusted path stays inside the folder that it is joined to, on every operating system. */
export function isSafePath(file: string): boolean {
  if (file.length > 512 || /[\\:*?"<>|\p{C}]/u.test(file)) return false;
  return file.split('/').every(part => part !== '' && !part.startsWith('..') && part !== '.' && !/[. ]$/.test(part));
}

/** The quantization in a file name, in upper case; undefined if there is none. */
export function parseQuant(file: string): string | undefined {
  const stem = file.replace(partPattern, '').replace(/\.gguf$/i, '');
  return quantPattern.exec(stem)?.[1].toUpperCase().replace(/^FP/, 'F');
}

/** Groups files into models. Vision projectors and importance matrices, which are GGUF files too, are left out. */
export function groupModels(files: string[]): GgufModel[] {
  const models = new Map<string, GgufModel>();
  for (const file of [...files].sort()) {
    if (!/\.gguf$/i.test(file) || /mmproj|imatrix/i.test(file)) continue;
    const key = file.replace(partPattern, '-of-$2');
    const model = models.get(key);
    if (model) model.parts.push(file);
    else
      models.set(key, {
        file,
        quant: parseQuant(file),
        parts: [file],
        partCount: Number(partPattern.exec(file)?.[2] ?? 1),
      });
  }
  return [...models.values()];
}

/** The models that match a name's file or quantization; all models if it has neither. */
export function matchModels(models: GgufModel[], { quant, file }: Pick<ModelName, 'quant' | 'file'>): GgufModel[] {
  if (file !== undefined) return models.filter(model => model.parts.includes(file));
  if (quant === undefined) return models;
  const wanted = quant.toUpperCase().replace(/^FP/, 'F');
  return models.filter(model => model.quant === wanted);
}

// Default choice: best quality for its size first, then fast to decode, then the rest by size.
const preferredQuants =
  'Q4_K_M Q4_0 Q8_0 Q4_K_S Q5_K_M Q6_K UD-Q4_K_XL IQ4_NL IQ4_XS Q4_1 Q5_K_S Q5_0 Q5_1 Q3_K_M Q4 Q8 F16 BF16 F32'.split(
    ' ',
  );

/** The models of a repository to download; `note` explains a default choice. */
export function chooseModels(models: GgufModel[], name: ModelName): { models: GgufModel[]; note?: string } {
  if (name.quant !== undefined || name.file !== undefined || models.length < 2)
    return { models: matchModels(models, name) };
  for (const quant of preferredQuants) {
    const found = matchModels(models, { quant });
    if (found.length > 1) return { models: [] };
    if (found.length === 1) {
      const all = [...new Set(models.map(model => model.quant ?? model.file))];
      return { models: found, note: `${name.repo} has ${all.join(', ')}; using ${quant}` };
    }
  }
  return { models: [] };
}

/** The name of a model: with its quantization if that is unambiguous, else with its file. */
export function formatModelName(repo: string, model: GgufModel, all: GgufModel[]): string {
  const isUnique = model.quant !== undefined && matchModels(all, { quant: model.quant }).length === 1;
  return isUnique ? `${repo}:${model.quant}` : `${repo}/${model.file}`;
}
