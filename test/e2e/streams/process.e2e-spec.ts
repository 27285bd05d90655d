import { expect, it } from '@jest/globals';
import { forkChild } from '../../fixtures/partitions/fork-child.js';

it('[8.1] [8.2] Streams that fail or are left cause no unhandled rejection and do not keep the process alive', async () => {
  const { code, messages, stderr } = await forkChild('streams', [], {
    NODE_OPTIONS: '--unhandled-rejections=strict',
  });

  expect({ code, messages, stderr }).toEqual({ code: 0, messages: [220], stderr: '' });
});
