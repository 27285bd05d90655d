import type { ResolvedServing } from '../definition/resolved-serving.js';
import { describeTensors, type ServingSignature } from '../definition/serving-signature.js';
import { formatValue } from '../format.js';
import { type PartitionStatus } from '../partitions/partition.js';

/** What is known of a serving that has started. */
export interface Started {
  readonly signature: ServingSignature | undefined;
  readonly partitions: readonly PartitionStatus[];
  /** Milliseconds until all partitions were loaded. */
  readonly loadTime: number;
  /** Milliseconds of the warm-up; undefined where nothing was run. */
  readonly warmUpTime: number | undefined;
}

/** The one line of the log about a serving that has started. */
export function bootLine(
  { name, runner, isolation }: ResolvedServing,
  { signature, partitions, loadTime, warmUpTime }: Started,
  /** The label of a version that was loaded later. */
  version?: string,
): string {
  const providers = new Set(partitions.flatMap(({ provider }) => provider ?? []));
  const on = providers.size > 0 ? ` on ${[...providers].join(' and ')}` : '';
  const parts = [
    `${runner}${on}, ${placesOf(partitions.length, isolation)}`,
    signature && `inputs ${describeTensors(signature.inputs)}`,
    signature?.outputs && `outputs ${describeTensors(signature.outputs)}`,
    `loaded in ${Math.round(loadTime)} ms`,
    warmUpTime !== undefined && `warm-up ${Math.round(warmUpTime)} ms`,
  ];
  const loaded = version === undefined ? '' : `, version ${formatValue(version)},`;
  return `Serving ${formatValue(name)}${loaded} is ready: ${parts.filter(Boolean).join('; ')}`;
}

function placesOf(count: number, isolation: ResolvedServing['isolation']): string {
  if (isolation === 'none') {
    return "in the application's own thread";
  }
  const [one, many] =
    isolation === undefined
      ? ['partition', 'partitions']
      : isolation === 'thread'
        ? ['thread', 'threads']
        : ['process', 'processes'];
  return `${count} ${count === 1 ? one : many}`;
}
