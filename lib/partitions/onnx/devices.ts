import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import type { PartitionOptions } from '../batch-function.js';

type Provider = string | { readonly name: string };

/**
 * What `partitions: true` means: the options of one partition per device of the first execution
 * provider.
 */
export function partitionPerDevice(session: PartitionOptions): PartitionOptions[] {
  const [first = 'cpu', ...fallbacks] = (session['executionProviders'] ??
    []) as readonly Provider[];
  const provider = typeof first === 'string' ? { name: first } : first;
  switch (provider.name) {
    case 'cpu':
      return Array.from({ length: Math.max(1, availableParallelism() - 1) }, () => ({}));
    case 'cuda':
    case 'tensorrt':
      return Array.from({ length: Math.max(1, countNvidiaDevices()) }, (_, deviceId) => ({
        executionProviders: [{ ...provider, deviceId }, ...fallbacks],
      }));
    default:
      // These providers offer one device: the one that the system prefers.
      return [{}];
  }
}

/**
 * The devices that CUDA will number from 0; none when there is no driver, which opening the session
 * then reports.
 */
function countNvidiaDevices(): number {
  const visible = process.env['CUDA_VISIBLE_DEVICES'];
  if (visible !== undefined) {
    return visible.split(',').filter(Boolean).length;
  }
  try {
    return readdirSync('/proc/driver/nvidia/gpus').length;
  } catch {
    return 0;
  }
}
