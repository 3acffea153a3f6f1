/**
 * What users and repositories call models: `org/repo`, `org/repo:Q4_K_M`, `org/repo/file.gguf`, and file names such as
 * `qwen-q4_k_m-00001-of-00003.gguf`, out of which come the quantization and the parts that belong together.
 */
import { InputError } from '../../errors.ts';

export interface ModelName {
  /** `org/repo` */
  repo: string;
  /** As the user wrote it; compared without regard to case. */
  quant?: string;
  /** A file inside the repository, folders included. */
  file?: string;
}

/** One model of a repository: a file, or all the parts of a split one. */
export interface GgufModel {
  /** The first part. */
  file: string;
  /** `Q4_K_M`, in capitals; undefined where the name does not say. */
  quant?: string;
  /** In order; some are missing where there are fewer than `partCount`. */
  parts: string[];
  partCount: number;
}

const namePattern = /^(?:hf:)?([\w.-]{1,96}\/[\w.-]{1,96})(?::([\w.-]{1,64})|\/(.+\.gguf))?$/i;
const quantPattern = /(?:^|[-._/])((?:UD-)?(?:I?Q|TQ)\d(?:_[A-Z0-9]+)*|MXFP\d(?:_[A-Z0-9]+)*|BF16|FP?16|FP?32)$/i;
const partPattern = /-(\d{5})-of-(\d{5})(?=\.gguf$)/i;

/** Reads a hub name; undefined for what can only be a path (`./model.gguf`, `models/model.gguf`). */
export function parseModelName(text: string): ModelName | undefined {
  const match = namePattern.exec(text);
  if (!match) return undefined;
  const [, repo, quant, file] = match;
  if (!isRepo(repo) || (file !== undefined && !isSafeFile(file))) return undefined;
  return { repo, quant, file };
}

export function requireModelName(text: string): ModelName {
  const name = parseModelName(text);
  if (name) return name;
  throw new InputError(`'${text}' is not a model on the hub: write org/repo, org/repo:Q4_K_M or org/repo/file.gguf`);
}

/** The hub forbids `--` and `..` in names, and the cache's folder names rely on that. */
function isRepo(repo: string): boolean {
  return repo.split('/').every(part => /^[a-z0-9_]/i.test(part) && !/--|\.\.|\.gguf$/i.test(part));
}

/** A branch, a tag or a commit: it becomes a path under refs/, so it may not climb out of it. */
export function checkRevision(revision: string): string {
  const parts = revision.split('/');
  if (revision.length <= 200 && parts.every(part => /^[\w][\w.+-]*$/.test(part) && !part.includes('..')))
    return revision;
  throw new InputError(`'${revision}' is not a revision: give a branch, a tag or a commit, such as main`);
}

/** Whether a name from a server or a user stays inside the folder that it is joined to, on every system. */
export function isSafeFile(file: string): boolean {
  if (file.length > 512 || /[\\:*?"<>|\p{C}]/u.test(file)) return false;
  return file.split('/').every(part => part !== '' && !part.startsWith('..') && part !== '.' && !/[. ]$/.test(part));
}

export function quantOf(file: string): string | undefined {
  const stem = file.replace(partPattern, '').replace(/\.gguf$/i, '');
  return quantPattern.exec(stem)?.[1].toUpperCase().replace(/^FP/, 'F');
}

/** Sorts files into models. Vision projectors and importance matrices are GGUF files too, but no language models. */
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
        quant: quantOf(file),
        parts: [file],
        partCount: Number(partPattern.exec(file)?.[2] ?? 1),
      });
  }
  return [...models.values()];
}

/** The models that a name means: all of them, unless it says a file or a quantization. */
export function matchModels(models: GgufModel[], { quant, file }: Pick<ModelName, 'quant' | 'file'>): GgufModel[] {
  if (file !== undefined) return models.filter(model => model.parts.includes(file));
  if (quant === undefined) return models;
  const wanted = quant.toUpperCase().replace(/^FP/, 'F');
  return models.filter(model => model.quant === wanted);
}

// Without a wish: the best text for the memory first, then what decodes fast, then whatever there is, small to large.
const preferred =
  'Q4_K_M Q4_0 Q8_0 Q4_K_S Q5_K_M Q6_K UD-Q4_K_XL IQ4_NL IQ4_XS Q4_1 Q5_K_S Q5_0 Q5_1 Q3_K_M Q4 Q8 F16 BF16 F32'.split(
    ' ',
  );

/** Of a repository's models, those to fetch; `note` says why where the user left the choice to us. */
export function chooseModels(models: GgufModel[], name: ModelName): { models: GgufModel[]; note?: string } {
  if (name.quant !== undefined || name.file !== undefined || models.length < 2)
    return { models: matchModels(models, name) };
  for (const quant of preferred) {
    const found = matchModels(models, { quant });
    if (found.length > 1) return { models: [] };
    if (found.length === 1) {
      const all = [...new Set(models.map(model => model.quant ?? model.file))];
      return { models: found, note: `${name.repo} has ${all.join(', ')}; taking ${quant}` };
    }
  }
  return { models: [] };
}

/** How a user asks for this model: by its quantization where that is enough, else by its file. */
export function askFor(repo: string, model: GgufModel, all: GgufModel[]): string {
  const alone = model.quant !== undefined && matchModels(all, { quant: model.quant }).length === 1;
  return alone ? `${repo}:${model.quant}` : `${repo}/${model.file}`;
}
