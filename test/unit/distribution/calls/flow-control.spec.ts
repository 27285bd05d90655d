import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import {
  ReceiveWindow,
  grantedWindow,
  SendWindow,
} from '../../../../lib/extensions/distribution/calls/flow-control.js';
import { FrameError } from '../../../../lib/extensions/distribution/wire/prelude.js';

const value = (): string => 'value';

describe('The receiver of a stream', () => {
  it('[L6] The receiver refuses a message beyond the number of messages that it granted', () => {
    const inbox = new ReceiveWindow({ messages: 3, bytes: 1e6 }, () => {});
    for (let i = 0; i < 3; i++) {
      inbox.push(i, value, 1);
    }

    expect(() => inbox.push(3, value, 1)).toThrow(
      new FrameError('Message 3 of a stream exceeds the window of 3 messages and 1000000 bytes'),
    );
  });

  it('[L6] The receiver refuses a message beyond the bytes that it granted, without decoding it', () => {
    const inbox = new ReceiveWindow({ messages: 100, bytes: 1000 }, () => {});
    inbox.push(0, value, 999);
    inbox.push(1, value, 5000);

    expect(() =>
      inbox.push(
        2,
        () => {
          throw new Error('decoded');
        },
        1,
      ),
    ).toThrow(FrameError);
  });

  it('[L6] The receiver accepts one message that is larger than the window', () => {
    const inbox = new ReceiveWindow({ messages: 4, bytes: 10 }, () => {});

    expect(() => inbox.push(0, value, 11)).not.toThrow();
  });

  it('[L6] The receiver accepts more messages after granting credit for those taken', async () => {
    const credits: number[] = [];
    const inbox = new ReceiveWindow({ messages: 2, bytes: 10 }, (taken) => credits.push(taken));
    inbox.push(0, value, 10);
    await inbox.next();
    inbox.push(1, value, 10);
    await inbox.next();
    inbox.push(2, value, 10);

    expect(credits).toEqual([1, 2]);
    expect(() => inbox.push(3, value, 1)).toThrow(FrameError);
  });

  it('[L6] The receiver never refuses a sender that keeps to the window, however late its credit arrives', async () => {
    const steps = fc.array(
      fc.tuple(fc.constantFrom('send', 'take', 'deliver'), fc.integer({ min: 1, max: 500_000 })),
      {
        maxLength: 200,
      },
    );
    await fc.assert(
      fc.asyncProperty(
        steps,
        fc.integer({ min: 1, max: 40 }),
        fc.integer({ min: 1, max: 1e6 }),
        async (all, messages, bytes) => {
          const credits: number[] = [];
          const inbox = new ReceiveWindow({ messages, bytes }, (taken) => credits.push(taken));
          const window = new SendWindow({ messages, bytes });
          let waiting = 0;
          for (const [step, size] of all) {
            if (step === 'send' && (await hasRoom(window))) {
              inbox.push(window.sent, value, size);
              window.add(size);
              waiting++;
            } else if (step === 'take' && waiting > 0) {
              await inbox.next();
              waiting--;
            } else if (step === 'deliver' && credits.length > 0) {
              window.acknowledge(credits.shift()!);
            }
          }
          // All sent messages can be taken, and their credits restore the whole room.
          for (; waiting > 0; waiting--) {
            await inbox.next();
          }
          credits.forEach((taken) => window.acknowledge(taken));
          expect(await hasRoom(window)).toBe(true);
        },
      ),
    );
  });
});

describe('The sender of a stream', () => {
  it('[L6] The sender counts a credit that arrives before its message counts as sent', async () => {
    const window = new SendWindow({ messages: 1, bytes: 1 });
    window.acknowledge(1);
    window.add(100);

    expect(await hasRoom(window)).toBe(true);
  });

  it('[L6] The sender gains no room from credit for messages that it has not sent', async () => {
    const window = new SendWindow({ messages: 1, bytes: 10 });
    window.add(1);
    window.acknowledge(1e9);
    window.add(1);
    window.add(1);

    expect(await hasRoom(window)).toBe(false);
  });

  it('[L6] The sender keeps to the smaller of its own window and the granted one', () => {
    const own = { messages: 64, bytes: 1000 };

    expect(grantedWindow({}, own)).toEqual(own);
    expect(grantedWindow({ window: { messages: 2, bytes: 5000 } }, own)).toEqual({
      messages: 2,
      bytes: 1000,
    });
    expect(grantedWindow({ window: { messages: 1e6, bytes: 7 } }, own)).toEqual({
      messages: 64,
      bytes: 7,
    });
    for (const window of [
      {},
      null,
      'much',
      { messages: -1, bytes: 1 },
      { messages: 1, bytes: 0.5 },
    ]) {
      expect(() => grantedWindow({ window }, own)).toThrow(FrameError);
    }
  });
});

/** Whether the next message may be sent at once. */
async function hasRoom(window: SendWindow): Promise<boolean> {
  let room = false;
  void window.room().then((open) => (room = open));
  await Promise.resolve();
  await Promise.resolve();
  return room;
}
