/** What the code that dequantizes or seals one head of a page works on. */
import type { PageShape } from '../../page-layout.ts';
import type { I32 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import type { Tail } from './tail.ts';

interface HeadContext {
  k: Kernel;
  shape: PageShape;
  page: I32;
  head: I32;
  /** The head's block in the page. */
  block: I32;
  /** Scratch of two bytes per value. */
  codes: I32;
}

export interface DequantizeContext extends HeadContext {
  /** [token][codedDim] f32. */
  out: I32;
}

export interface SealContext extends HeadContext {
  /** The vectors to encode: [token][dim] f32, transformed. */
  y: I32;
  /** The f16 vectors that they come from. */
  tail: Tail;
  /** Scratch of two vectors. */
  scratch: I32;
  /** Scratch of a page of vectors; the same as `y` without a transform. */
  x: I32;
}
