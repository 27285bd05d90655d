import { expect, it } from '@jest/globals';
import { forkChild } from '../../fixtures/partitions/fork-child.js';

it('[L4] Streams that are begun and dropped are freed, and neither they nor their timers keep the process alive', async () => {
  const { code, messages, stderr } = await forkChild('dropped-streams');

  expect({ code, messages, stderr }).toEqual({
    code: 0,
    messages: [
      {
        begun: 120,
        before: { subscriptions: 60, listeners: true },
        after: { subscriptions: 0, listeners: 0, ended: 120 },
      },
    ],
    stderr: '',
  });
});

it('[L4] Streams that are refused keep no memory', async () => {
  const { code, messages, stderr } = await forkChild('refused-streams');

  expect({ code, messages, stderr }).toEqual({
    code: 0,
    messages: [{ before: 100, left: 0 }],
    stderr: '',
  });
});
