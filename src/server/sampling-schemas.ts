/** Fields that several routes share. Clients send null for fields that they do not use. */
import { z } from 'zod';
import type { Limits } from './limits.ts';

export const number = (min: number, max: number) => z.number().min(min).max(max).nullish();
export const integer = (min: number, max = Number.MAX_SAFE_INTEGER) => z.int().min(min).max(max).nullish();
export const flag = z.boolean().nullish();

export const jsonObject = z.record(z.string(), z.unknown());

/** One stop string, or a list of them. */
export const stopStrings = ({ stops, stopLength }: Limits) => {
  const stop = z.string().min(1).max(stopLength);
  return z.union([stop, z.array(stop).max(stops)], {
    error: `must be a string or an array of at most ${stops} strings, of 1 to ${stopLength} characters each`,
  });
};

/** A tool's name, as OpenAI and Anthropic allow it. */
export const toolName = z.string().regex(/^[\w-]{1,64}$/, 'must be 1 to 64 letters, digits, underscores or dashes');
