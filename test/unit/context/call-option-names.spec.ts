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
const same = { name: 'same', model: { useFactory: () => (rows: unknown) => rows } };
const ofCalls = 'signal, timeout, priority, tenant, key, origin, version';

describe.each(Object.entries(doors))('The options of %s', (door, call) => {
  useVirtualTime();
  const start = useServings();
  const allowed = door === 'stream' ? `${ofCalls}, hooks, inline` : ofCalls;

  it.each<object>([{ timeoutt: 100 }, { toString: 1 }, { timeoutt: undefined }])(
    '[M8] A call with an unknown option is refused with the known names: %p',
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

  it('[M8] A call accepts all documented options', async () => {
    const serving = await start(same);
    const options: Required<CallOptions> = {
      signal: new AbortController().signal,
      timeout: 100,
      priority: 1,
      tenant: 'a',
      key: 'default',
      origin: 'rpc',
      version: '1',
    };

    await expect(call(serving, options)).resolves.toBeDefined();
  });

  it('[M8] A call accepts an AbortController, whose signal ends it', async () => {
    const serving = await start(same);
    const leaver = new AbortController();
    const reason = new Error('left');

    await expect(call(serving, leaver)).resolves.toBeDefined();
    leaver.abort(reason);

    await expect(call(serving, leaver)).rejects.toBe(reason);
  });

  it('[M8] A call that is no stream refuses the options of streams', async () => {
    const serving = await start(same);

    const reply = call(serving, { inline: true, hooks: [] });

    await (door === 'stream'
      ? expect(reply).resolves.toBeDefined()
      : expect(reply).rejects.toThrow(/unknown option "inline"/));
  });
});

describe('The options of a call that shares a run', () => {
  useVirtualTime();
  const start = useServings();

  it('[M8] A call that shares a run is refused with an unknown option', async () => {
    const serving = await start({ ...same, deduplication: { singleFlight: true } });

    await expect(doors.batchedRun(serving, { timeoutt: 1 })).rejects.toThrow(InvalidInputError);
  });
});
