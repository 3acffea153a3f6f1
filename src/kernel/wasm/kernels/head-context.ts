/** What the code that dequantizes or seals one head of a page works on. */
import type { PageShape } from '../../page-layout.ts';
import type { I32 } from '../emit.ts';
import type { Kernel } from '../module.ts';
import type { Tail } from './tail.ts';

/** One KV head of a page. */
export interface PageHead {
  page: I32;
  head: I32;
}

interface HeadContext extends PageHead {
  k: Kernel;
  shape: PageShape;
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
