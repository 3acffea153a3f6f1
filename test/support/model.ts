/** Where the tests find a real model, and the little of GGUF they need to read its vocabulary. */
import { existsSync, readFileSync } from 'node:fs';

export const modelPath = new URL('../../../shared/models/SmolLM2-135M-Instruct.Q4_1.gguf', import.meta.url).pathname;
export const wikitextPath = new URL('../../../shared/data/wikitext2-valid.txt', import.meta.url).pathname;

/** Why a test that needs these files cannot run, or undefined. In CI it must run, so there the reason is an error. */
export function missing(...paths: string[]): string | undefined {
  const absent = paths.filter(path => !existsSync(path));
  if (absent.length === 0) return undefined;
  const reason = `needs ${absent.join(' and ')}`;
  if (process.env.CI) throw new Error(`CI must run this test, but it ${reason}`);
  return reason;
}

export function readMetadata(path: string): Map<string, unknown> {
  const file = readFileSync(path);
  let at = 8;
  const step = <T>(size: number, read: (offset: number) => T): T => {
    at += size;
    return read(at - size);
  };
  const long = () => Number(step(8, o => file.readBigUInt64LE(o)));
  const int = () => step(4, o => file.readUInt32LE(o));
  const text = () => {
    const length = long();
    return step(length, o => file.toString('utf8', o, o + length));
  };
  const value = (type: number): unknown => {
    switch (type) {
      case 4:
        return int();
      case 5:
        return step(4, o => file.readInt32LE(o));
      case 6:
        return step(4, o => file.readFloatLE(o));
      case 7:
        return step(1, o => file[o] !== 0);
      case 8:
        return text();
      case 9: {
        const item = int();
        return Array.from({ length: long() }, () => value(item));
      }
      case 10:
        return long();
      default:
        throw new Error(`this reader does not know GGUF type ${type}`);
    }
  };
  long();
  const count = long();
  return new Map(Array.from({ length: count }, () => [text(), value(int())]));
}
