import { afterEach, describe, expect, it, jest } from '@jest/globals';
import { createServing, type LocalServing, type PartitionStatus } from 'nestjs-serving';
import { externalModel, type Opened } from '../../fixtures/serving/external-model.js';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';

/** A serving with one partition, and a function that changes its status. */
async function started(
  providers: Opened['providers'],
): Promise<[LocalServing, (status: PartitionStatus) => void]> {
  let status: PartitionStatus = { state: 'up', restarts: 0, provider: 'cuda' };
  const listeners: (() => void)[] = [];
  const partition = {
    prefetch: 0,
    get status() {
      return status;
    },
    onChange: (listener: () => void) => void listeners.push(listener),
    run: () => Promise.reject(new Error('It runs nothing')),
    close: async () => {},
  };
  const model = externalModel(async () => ({ partitions: [partition], providers }));
  const serving = createServing({ name: 'net', model });
  await serving.start();
  const change = (next: PartitionStatus): void => {
    status = next;
    listeners.forEach((listener) => listener());
  };
  return [serving, change];
}

describe('The execution provider of a partition', () => {
  afterEach(() => {
    jest.restoreAllMocks();
  });

  it('[W10] A provider that several partitions miss leads to one warning', async () => {
    const warnings = recordWarnings();
    const missing = { inUse: 'cpu', missing: ['cuda (no driver)'] };

    const [serving] = await started([missing, undefined, missing]);
    await serving.close();

    expect(warnings).toEqual(['The model of serving "net" runs on cpu, without cuda (no driver)']);
  });

  it('[W10] A restart leads to a warning when the provider has changed, and not when it is the same', async () => {
    const warnings = recordWarnings();
    const [serving, change] = await started([]);

    change({ state: 'restarting', restarts: 0 });
    change({ state: 'up', restarts: 1, provider: 'cuda' });
    change({ state: 'up', restarts: 2, provider: 'cpu' });
    await serving.close();

    expect(warnings).toEqual(['Serving "net": Partition 0 now runs on cpu, and before on cuda']);
    expect(serving.partitions()).toEqual([{ state: 'up', restarts: 2, provider: 'cpu' }]);
  });
});
