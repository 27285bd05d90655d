export interface Setting {
  readonly partitions: number;
  /** `intraOpNumThreads` */
  readonly threads: number;
  readonly batchSize: number;
}

/** Ascending by batch size. */
export type Branch = readonly Setting[];

/** By default from one session on all cores to one per core, by powers of two. */
export function branchesFor(
  cores: number,
  sizes: readonly number[],
  only: { readonly partitions?: readonly number[]; readonly threads?: readonly number[] } = {},
): readonly Branch[] {
  const partitionCounts = only.partitions ?? powersOfTwo(cores);
  return partitionCounts.flatMap((partitions) =>
    (only.threads ?? [Math.max(1, Math.floor(cores / partitions))]).map((threads) =>
      sizes.toSorted((a, b) => a - b).map((batchSize) => ({ partitions, threads, batchSize })),
    ),
  );
}

/** 1, 2, 4 and so on, and `most`. */
export function powersOfTwo(most: number): number[] {
  const powers: number[] = [];
  for (let power = 1; power < most; power *= 2) {
    powers.push(power);
  }
  return [...powers, most];
}

export function describeSetting({ partitions, threads, batchSize }: Setting): string {
  return `${partitions} × ${threads} threads, batches of ${batchSize}`;
}
