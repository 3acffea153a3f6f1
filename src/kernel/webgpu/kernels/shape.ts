/** What kernels of attention are written for. */
export interface PageShape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
  /** Lanes of a subgroup, which may pass numbers to one another without workgroup memory; 0 where that is not known. */
  subgroups?: number;
  /** Whether subgroups of 32 multiply matrices of halves, 16 x 16 by 16 x 8. */
  matrices?: boolean;
  /** Whether halves can be reckoned with. */
  f16?: boolean;
}

/** Invocations of a workgroup. */
export const SIZE = 128;
