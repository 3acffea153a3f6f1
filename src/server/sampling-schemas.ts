/** Fields that several routes share. Clients send null for fields that they do not use. */
import { z } from 'zod';
import { TOOL_NAME, TOOL_NAME_RULE } from '../chat/tools.ts';
import type { Limits } from './limits.ts';

export const number = (min: number, max: number) => z.number().min(min).max(max).nullish();
export const integer = (min: number, max = Number.MAX_SAFE_INTEGER) => z.int().min(min).max(max).nullish();
export const flag = z.boolean().nullish();

export const jsonObject = z.record(z.string(), z.unknown());

/** Tokens of an answer; 0 and -1 are other servers' words for "no limit". */
export const tokenLimit = z.int().min(-1).max(Number.MAX_SAFE_INTEGER);

/** One stop string, or a list of them. Empty ones stop nothing. */
export const stopStrings = ({ stops, stopLength }: Limits) => {
  const stop = z.string().max(stopLength);
  return z.union([stop, z.array(stop).max(stops)], {
    error: `must be a string or an array of at most ${stops} strings, of up to ${stopLength} characters each`,
  });
};

export const toolName = z.string().regex(TOOL_NAME, `must be ${TOOL_NAME_RULE}`);
