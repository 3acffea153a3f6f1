/** What kernels of attention are written for. */
export interface PageShape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
  /** Lanes of a subgroup, which may pass numbers to one another without workgroup memory; 0 where that is not known. */
  subgroups?: number;
}

/** Invocations of a workgroup. */
export const SIZE = 128;
