/** The shape that attention kernels are generated for. */
export interface PageShape {
  headDim: number;
  kvHeads: number;
  pageTokens: number;
  /**
   * Lanes per subgroup where the adapter has a fixed size, else 0: lanes of a subgroup exchange values without
   * workgroup memory.
   */
  subgroupSize?: number;
  /** Whether subgroups of 32 multiply f16 matrices of 16 x 16 by 16 x 8. */
  subgroupMatrices?: boolean;
  /** Whether shaders compute in f16. */
  f16?: boolean;
}

/** Invocations per workgroup of the float kernels. */
export const WORKGROUP_SIZE = 128;
