import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import type { PartitionOptions } from '../batch-function.js';

type Provider = string | { readonly name: string };

/** For `partitions: true`: one partition per device of the first execution provider. */
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
      // Other providers offer one device: the system's default.
      return [{}];
  }
}

/** 0 without a driver, which the session reports when it opens. */
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
