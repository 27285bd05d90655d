import { describe, expect, it } from '@jest/globals';
import { type CallOptions, InvalidInputError, type LocalServing } from 'nestjs-serving';
import { collect } from '../../fixtures/async/collect.js';
import { useServings } from '../../fixtures/serving/use-servings.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';

const doors = {
  batchedRun: (serving: LocalServing, options: object) => serving.batchedRun('a', options),
  run: (serving: LocalServing, options: object) => serving.run('a', options),
  stream: (serving: LocalServing, options: object) => collect(serving.stream('a', options)),
};
const same = { name: 'same', useFactory: () => (rows: unknown) => rows };
const ofCalls = 'signal, timeout, priority, tenant, key, origin';

describe.each(Object.entries(doors))('The options of a call of %s', (door, call) => {
  useVirtualTime();
  const start = useServings();
  const allowed = door === 'stream' ? `${ofCalls}, hooks, inline` : ofCalls;

  it.each<object>([{ timeoutt: 100 }, { toString: 1 }, { timeoutt: undefined }])(
    '[M8] refuses a name that it does not know, with those that it knows: %p',
    async (options) => {
      const serving = await start(same);

      const reply = call(serving, options);

      const [name] = Object.keys(options);
      await expect(reply).rejects.toThrow(
        new InvalidInputError(
          `A call to serving "same" has the unknown option "${name}"; allowed are ${allowed}`,
        ),
      );
    },
  );

  it('[M8] takes all that it knows', async () => {
    const serving = await start(same);
    const options: Required<CallOptions> = {
      signal: new AbortController().signal,
      timeout: 100,
      priority: 1,
      tenant: 'a',
      key: 'default',
      origin: 'rpc',
    };

    await expect(call(serving, options)).resolves.toBeDefined();
  });

  it('[M8] takes an AbortController, whose signal ends the call', async () => {
    const serving = await start(same);
    const leaver = new AbortController();
    const reason = new Error('left');

    await expect(call(serving, leaver)).resolves.toBeDefined();
    leaver.abort(reason);

    await expect(call(serving, leaver)).rejects.toBe(reason);
  });

  it('[M8] refuses the options of streams, unless it is one', async () => {
    const serving = await start(same);

    const reply = call(serving, { inline: true, hooks: [] });

    await (door === 'stream'
      ? expect(reply).resolves.toBeDefined()
      : expect(reply).rejects.toThrow(/unknown option "inline"/));
  });
});

describe('The options of a call that shares its answer', () => {
  useVirtualTime();
  const start = useServings();

  it('[M8] refuses a name that it does not know', async () => {
    const serving = await start({ ...same, singleFlight: true });

    await expect(doors.batchedRun(serving, { timeoutt: 1 })).rejects.toThrow(InvalidInputError);
  });
});
