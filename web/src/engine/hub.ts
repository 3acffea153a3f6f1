/** Models of the Hugging Face hub by name, or by the address of their page: which file, and where it is. */
import { texts } from '../texts/index.ts';
import { EngineError } from './engine.ts';

export const HUB = 'https://huggingface.co';

export interface HubName {
  /** `owner/name`. */
  repo: string;
  /** Such as Q4_K_M; case does not matter. */
  quant?: string;
  /** A path in the repository. */
  file?: string;
}

export interface HubFile {
  url: string;
  /** If the hub tells it. */
  bytes?: number;
}

/** Owner and name. A path such as `./models/a.gguf` is none. */
const REPO = '[a-z\\d][\\w.-]*/[a-z\\d][\\w.-]*';
const NAME = new RegExp(`^(?:hf:)?(${REPO})(?::([\\w.-]+)|/([^?#]+\\.gguf))?$`, 'i');
/** What follows the repository in the address of a page or file. */
const PAGE = new RegExp(`^(${REPO})(?:/(?:tree/[^/]+/?|(?:blob|resolve)/[^/]+/([^?#]+\\.gguf)))?/?$`, 'i');
/** Without a quantization in the name: the first of these, else the smallest file. */
const USUAL = ['Q4_K_M', 'Q4_0', 'Q4_1', 'Q8_0'];
const PART = /-\d{5}-of-\d{5}\.gguf$/i;

/** `owner/name`, `owner/name:Q4_K_M`, `owner/name/file.gguf`, or a page of the hub; undefined: another address. */
export function parseHubName(text: string, hub = HUB): HubName | undefined {
  const [, repo, quant, file] = NAME.exec(text.trim()) ?? [];
  if (repo) return { repo, ...(quant && { quant }), ...(file && { file }) };
  if (!text.trim().startsWith(`${hub}/`)) return undefined;
  const path = decodeURIComponent(
    text
      .trim()
      .slice(hub.length + 1)
      .split(/[?#]/)[0]!,
  );
  const [, pageRepo, pageFile] = PAGE.exec(path) ?? [];
  return pageRepo ? { repo: pageRepo, ...(pageFile && { file: pageFile }) } : undefined;
}

/** Asks the hub for the files of the repository. */
export async function findHubFile({ repo, quant, file }: HubName, hub = HUB): Promise<HubFile> {
  const files = await listFiles(repo, hub);
  const whole = files.filter(({ name }) => !PART.test(name));
  const hasQuant = (name: string, wanted: string) => new RegExp(`[-._]${wanted}\\.gguf$`, 'i').test(name);
  const bySize = [...whole].sort((a, b) => (a.bytes ?? 0) - (b.bytes ?? 0));
  const usual = USUAL.map(wanted => whole.find(({ name }) => hasQuant(name, wanted))).find(Boolean);
  const found = file
    ? files.find(({ name }) => name === file)
    : quant
      ? whole.find(({ name }) => hasQuant(name, quant))
      : (usual ?? bySize[0]);
  if (!found) {
    const names = whole.map(({ name }) => name);
    throw new EngineError(
      names.length === 0 ? texts.models.noWholeFile(repo) : texts.models.noFile(repo, (file ?? quant)!, names),
    );
  }
  const path = found.name.split('/').map(encodeURIComponent).join('/');
  return { url: `${hub}/${repo}/resolve/main/${path}`, ...(found.bytes !== undefined && { bytes: found.bytes }) };
}

interface ListedFile {
  name: string;
  bytes?: number;
}

/** The GGUF files of a repository. What the hub answers is not trusted. */
async function listFiles(repo: string, hub: string): Promise<ListedFile[]> {
  const { host } = new URL(hub);
  const response = await fetch(`${hub}/api/models/${repo}?blobs=true`).catch(() => {
    throw new EngineError(texts.models.unreachable(host));
  });
  if (response.status === 401 || response.status === 403 || response.status === 404)
    throw new EngineError(texts.models.noRepository(repo, host));
  const answer: unknown = response.ok ? await response.json().catch(() => undefined) : undefined;
  const siblings = (answer as { siblings?: unknown } | undefined)?.siblings;
  if (!Array.isArray(siblings)) throw new EngineError(texts.models.badAnswer(host, response.status));
  return siblings.flatMap(({ rfilename, size }: { rfilename?: unknown; size?: unknown }) =>
    typeof rfilename === 'string' && /\.gguf$/i.test(rfilename) && !rfilename.includes('..')
      ? [{ name: rfilename, ...(typeof size === 'number' && { bytes: size }) }]
      : [],
  );
}
