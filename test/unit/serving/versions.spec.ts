import { describe, expect, it, jest } from '@jest/globals';
import { firstValueFrom, lastValueFrom, Subject, toArray } from 'rxjs';
import {
  Batch,
  InvalidServingError,
  type LocalServing,
  type ServingEvent,
  ServingClosedError,
  ServingLoadError,
  type ServingOptions,
  UnknownVersionError,
} from 'nestjs-serving';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { later, turn, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { LabelledVersions } from '../../fixtures/serving/labelled-versions.js';
import { externalModel, type Opened } from '../../fixtures/serving/external-model.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

/** Milliseconds until a version without calls is freed: that takes turns of the event loop, and no time. */
const FREED = 0;

/** The label that each of the replies begins with, without the rows. */
const labelsOf = async (replies: readonly Promise<string>[]): Promise<string[]> =>
  (await Promise.all(replies)).map((reply) => reply.split(':')[0]!);

type Shape = readonly (number | string)[];

/** A call that ends in some way, on a serving whose first version fails or holds its batches. */
interface EndingCall {
  readonly serving: LocalServing<unknown, string>;
  readonly fail: () => void;
  readonly hold: () => void;
}

/** A model whose versions 1, 2 and so on have these tensors. */
const modelOf = (signatures: readonly Partial<Signature>[]) =>
  externalModel(async (version = '1') => ({
    partitions: [
      {
        prefetch: 0,
        run: () => Promise.reject(new Error('It runs nothing')),
        close: async () => {},
      },
    ],
    signature: { ...EMPTY, ...signatures[Number(version) - 1] },
  }));

type Signature = NonNullable<Opened['signature']>;

/** Refuses a share of the third version, beside a second one with 0.6. */
const sharesRefused = (share: number) =>
  new InvalidServingError(
    `Serving "net": version "3" cannot get ${share} of the calls, since version "2" gets 0.6; ` +
      'shares of canaries are 1 together at most, so lower one of them first',
  );

const EMPTY: Signature = {
  inputs: [],
  outputs: [],
  fetches: [],
  states: [],
  dynamicallyQuantised: false,
};

const both = (serving: LocalServing<unknown, string>): Promise<unknown> =>
  Promise.all([serving.batchedRun('a'), serving.batchedRun('a')]);

const throwing = (): never => {
  throw new RangeError('no answer');
};

const roles = (serving: LocalServing<unknown, string>): string[] =>
  serving.versions().map(({ version, role }) => `${version} ${role}`);

describe('Versions of a serving', () => {
  // Their end comes first.
  const start = useServings();
  useVirtualTime();
  const startVersions = async (
    options: Partial<Parameters<LabelledVersions['serving']>[0]> = {},
  ): Promise<{ versions: LabelledVersions; serving: LocalServing<unknown, string> }> => {
    const versions = new LabelledVersions();
    const serving = versions.serving({ name: 'net', ...options });
    await start(serving);
    return { versions, serving };
  };

  describe('reload', () => {
    it('[17.1] Calls before the switch run on the version before, and later ones on the new one', async () => {
      const { versions, serving } = await startVersions();
      versions.hold('batch 1');
      const before = ['a', 'b'].map((row) => serving.batchedRun(row));
      await turn();

      const { version } = await serving.reload();
      const after = ['c', 'd'].map((row) => serving.batchedRun(row));

      expect(version).toBe('2');
      expect(await Promise.all(after)).toEqual(['2:c', '2:d']);
      expect(roles(serving)).toEqual(['1 draining', '2 active']);
      versions.release('batch 1');
      expect(await Promise.all(before)).toEqual(['1:a', '1:b']);
      expect(versions.batches).toEqual([
        ['1:a', '1:b'],
        ['2:c', '2:d'],
      ]);
    });

    it('[17.1] The version before is freed once its rows have ended, and not before', async () => {
      const { versions, serving } = await startVersions();
      versions.hold('batch 1');
      const call = serving.batchedRun('a');
      await turn();
      await serving.reload();

      await later(1000);
      expect(versions.open).toEqual(['1', '2']);
      versions.release('batch 1');
      await call;
      await later(FREED);

      expect(versions.open).toEqual(['2']);
      expect(roles(serving)).toEqual(['2 active']);
      expect(serving.counters()).toMatchObject({ answered: 1, batches: 1 });
    });

    it.each<[string, (call: EndingCall) => unknown, Partial<ServingOptions>?]>([
      ['answered', ({ serving }) => serving.batchedRun('a')],
      [
        'answered by postprocess',
        ({ serving }) => serving.batchedRun('a'),
        { postprocess: String },
      ],
      ['answered alone', ({ serving }) => serving.run('a')],
      ['answered together with another', ({ serving }) => both(serving), { deduplication: {} }],
      [
        'answered and observed',
        ({ serving }) => (serving.events$.subscribe(), serving.batchedRun('a')),
      ],
      ['failed with its batch', ({ serving, fail }) => (fail(), serving.batchedRun('a'))],
      [
        'failed in postprocess',
        ({ serving }) => serving.batchedRun('a'),
        { postprocess: throwing },
      ],
      ['refused for its input', ({ serving }) => serving.batchedRun([])],
      ['refused for its options', ({ serving }) => serving.batchedRun('a', { timeout: -1 })],
      [
        'cancelled in the queue',
        async ({ serving, hold }) => {
          hold();
          void serving.batchedRun('runs');
          const caller = new AbortController();
          const call = serving.batchedRun('a', { signal: caller.signal });
          await turn();
          caller.abort();
          return call;
        },
      ],
      ['streamed to its end', ({ serving }) => lastValueFrom(serving.stream('a'))],
      ['streamed and left', ({ serving }) => firstValueFrom(serving.stream(['a', 'b']))],
      [
        'a stream that was refused',
        ({ serving }) => lastValueFrom(serving.stream('a', { hooks: [1 as never] })),
      ],
    ])('[17.1] A version is freed after a call that was %s', async (_, end, options = {}) => {
      const { versions, serving } = await startVersions(options);
      const fail = (): void => versions.fail('batch 1', new Error('out of memory'));
      const hold = (): void => versions.hold('batch 1');

      await Promise.allSettled([(async () => end({ serving, fail, hold }))()]);
      versions.release('batch 1');
      await turn();
      await serving.reload();
      await later(FREED);

      expect(versions.open.filter((label) => label === '1')).toEqual([]);
    });

    it('[17.1] Calls run on the version before while the new one loads', async () => {
      const { versions, serving } = await startVersions();
      versions.hold('load 2');
      const reload = serving.reload();
      await turn();

      expect(await serving.batchedRun('a')).toBe('1:a');
      expect(roles(serving)).toEqual(['1 active', '2 loading']);
      versions.release('load 2');
      await reload;
      expect(await serving.batchedRun('b')).toBe('2:b');
    });

    it('[17.1] Rows that wait in a window for more rows run when their version gets none', async () => {
      const { serving } = await startVersions({ batchTimeout: 10_000 });
      const call = serving.batchedRun('a');
      await turn();

      await serving.reload();

      expect(await call).toBe('1:a');
    });

    it('[17.1] [3.1] run() has the session of its version, so a reload loads the model once', async () => {
      const { versions, serving } = await startVersions();
      expect(await serving.run('a')).toBe('1:a');
      versions.loads.length = 0;

      await serving.reload();

      expect(await serving.run('b')).toBe('2:b');
      expect(versions.loads).toEqual(['2']);
      await later(FREED);
      expect(versions.open).toEqual(['2']);
    });

    it('[17.2] A version that fails to load is freed, and the one before goes on', async () => {
      const { versions, serving } = await startVersions();
      versions.fail('load 2', new Error('truncated'));

      const failure = await failureOf(serving.reload());

      expect(failure).toBeInstanceOf(ServingLoadError);
      expect((failure as Error).message).toContain('truncated');
      expect(roles(serving)).toEqual(['1 active']);
      expect(versions.open).toEqual(['1']);
      expect(await serving.batchedRun('a')).toBe('1:a');
    });

    it('[17.2] A version whose warm-up fails is freed, and the one before goes on', async () => {
      const { versions, serving } = await startVersions({ warmUp: ['w'] });
      versions.fail('batch 2', new Error('wrong weights'));

      await expect(serving.reload()).rejects.toThrow(ServingLoadError);

      expect(versions.open).toEqual(['1']);
      expect(await serving.batchedRun('a')).toBe('1:a');
    });

    it('[17.2] After a failure the next reload may succeed', async () => {
      const { versions, serving } = await startVersions();
      versions.fail('load 2', new Error('truncated'));
      await failureOf(serving.reload());

      const { version } = await serving.reload({ version: '3' });

      expect(version).toBe('3');
      expect(await serving.batchedRun('a')).toBe('3:a');
    });

    it('[E5] A load that does not end is given up after restartTimeout, and holds no later one', async () => {
      const { versions, serving } = await startVersions();
      versions.hold('load 2');
      const failure = failureOf(serving.reload());
      await later(599_999);
      expect(roles(serving)).toEqual(['1 active', '2 loading']);
      await later(1);

      expect(await failure).toBeInstanceOf(ServingLoadError);
      expect(((await failure) as Error).message).toBe(
        'Serving "net": version "2" was not ready 600000 ms after its reload; raise ' +
          'recovery.restartTimeout if that may take so long',
      );
      const { version } = await serving.reload({ version: '3' });
      expect(version).toBe('3');
      expect(await serving.batchedRun('a')).toBe('3:a');

      versions.release('load 2');
      await later(FREED);
      expect(roles(serving)).toEqual(['3 active']);
      expect(versions.open).toEqual(['3']);
    });

    it('[E5] The label of a load that was given up is free, also while what loads has not ended', async () => {
      const { versions, serving } = await startVersions();
      versions.hold('load 2');
      const failure = failureOf(serving.reload());
      await later(600_000);
      await failure;

      versions.release('load 2');
      expect((await serving.reload()).version).toBe('2');
      expect(await serving.batchedRun('a')).toBe('2:a');
    });

    it.each<[string, Shape, Shape, string | undefined]>([
      ['another fixed size', ['rows', 2], ['rows', 3], 'its input x: float32'],
      ['a size that calls could choose', ['rows', 'n'], ['rows', 3], 'its input'],
      ['a size that calls may choose now', ['rows', 2], ['rows', 'n'], undefined],
      ['the same sizes', ['rows', 2], ['rows', 2], undefined],
      ['another fixed batch', [2, 2], [4, 2], undefined],
    ])('[E6] A model whose input has %s is told apart', async (_, was, now, difference) => {
      const port = { name: 'x', type: 'float32' as const, batchAxis: 0 };
      const serving = await start({
        name: 'net',
        model: modelOf([was, now].map((shape) => ({ inputs: [{ ...port, shape }] }))),
      });

      const refusal: unknown = await serving.reload({ version: '2' }).catch((error) => error);
      if (difference === undefined) {
        expect(refusal).toMatchObject({ version: '2' });
      } else {
        expect(refusal).toBeInstanceOf(InvalidServingError);
        expect(String(refusal)).toContain(
          `version "2" cannot run the calls of version "1": ${difference}`,
        );
      }
    });

    it.each<[string, Shape, Shape, boolean]>([
      ['another fixed size', ['rows', 10], ['rows', 12], true],
      ['a fixed size, which had any', ['rows', 'n'], ['rows', 12], false],
    ])(
      '[E6] A model whose output has %s is told apart where callers could notice',
      async (_, was, now, differs) => {
        const port = { name: 'y', type: 'float32' as const, batchAxis: 0 };
        const serving = await start({
          name: 'net',
          model: modelOf(
            [was, now].map((shape) => ({ outputs: [{ ...port, shape }], fetches: ['y'] })),
          ),
        });

        const reloading = serving.reload({ version: '2' });
        await (differs
          ? expect(reloading).rejects.toThrow('its output y')
          : expect(reloading).resolves.toMatchObject({ version: '2' }));
      },
    );

    it('[17.2] A second reload is refused while one loads', async () => {
      const { versions, serving } = await startVersions();
      versions.hold('load 2');
      const first = serving.reload();

      await expect(serving.reload({ version: '3' })).rejects.toThrow(
        new InvalidServingError(
          'Serving "net" is loading version "2"; reload again once that has ended',
        ),
      );
      versions.release('load 2');
      await first;
    });

    it('[17.2] Code of the application is not reloaded, with what to do instead', async () => {
      const serving = await start({
        name: 'net',
        model: { useFactory: () => (rows: unknown[]) => rows },
      });

      const failure = await failureOf(serving.reload());

      expect(failure).toBeInstanceOf(InvalidServingError);
      expect((failure as Error).message).toContain('restart the application');
    });

    it.each<[object, string]>([
      [{ canary: 2 }, 'canary'],
      [{ canary: '0.5' }, 'canary'],
      [{ version: '' }, 'version'],
      [{ modle: 'v2.onnx' }, 'unknown option "modle"'],
    ])('[17.2] The options of a reload are checked: %p', async (options, message) => {
      const { serving } = await startVersions();

      await expect(serving.reload(options)).rejects.toThrow(message);
    });

    it('[17.2] A label that calls can ask for is not given twice', async () => {
      const { serving } = await startVersions();
      await serving.reload({ version: '2', canary: 0.5 });

      await expect(serving.reload({ version: '1', canary: 0.5 })).rejects.toThrow(
        'has a version "1" already',
      );
      await expect(serving.reload({ version: '2' })).rejects.toThrow('has a version "2" already');
    });

    it('[17.1] The version that is replaced may leave its label to the new one', async () => {
      const { versions, serving } = await startVersions({ rollout: { version: 'stable' } });

      const { version } = await serving.reload({ version: 'stable' });
      await later(FREED);

      expect(version).toBe('stable');
      expect(versions.open).toEqual(['stable']);
      expect(await serving.batchedRun('a', { version: 'stable' })).toBe('stable:a');
    });

    it('[17.2] A serving that has not started or is closed is not reloaded', async () => {
      const versions = new LabelledVersions();
      const serving = versions.serving({ name: 'net' });

      await expect(serving.reload()).rejects.toThrow(ServingClosedError);
      await start(serving);
      await serving.close();
      await expect(serving.reload()).rejects.toThrow(ServingClosedError);
    });

    it.each([true, false])(
      '[17.2] Shutdown ends a reload, and leaves nothing open, with drain %p',
      async (drain) => {
        const { versions, serving } = await startVersions({ shutdown: { drain } });
        versions.hold('load 2');
        const reload = failureOf(serving.reload());
        await turn();

        serving.beforeApplicationShutdown();
        const call = failureOf(serving.batchedRun('a'));
        versions.release('load 2');
        await serving.close();

        expect(await call).toEqual(drain ? undefined : expect.any(ServingClosedError));
        expect(await reload).toBeInstanceOf(ServingClosedError);
        expect(String(await reload)).toContain('while the version loaded');
        expect(versions.open).toEqual([]);
      },
    );

    it('[17.1] Changes of batch size and timeout hold for later versions, too', async () => {
      const { versions, serving } = await startVersions({ partitions: 1 });
      serving.setBatchSize(2);
      await serving.reload({ version: '2', canary: 0 });
      serving.setBatchSize(3);
      await serving.reload();

      const rows = ['a', 'b', 'c', 'd'];
      await Promise.all(rows.map((row) => serving.batchedRun(row)));
      await Promise.all(rows.map((row) => serving.batchedRun(row, { version: '2' })));

      expect(versions.batches.map((batch) => batch.length)).toEqual([3, 1, 3, 1]);
    });
  });

  describe('canaries', () => {
    it('[17.3] A canary gets its share of calls without a tenant', async () => {
      const { serving } = await startVersions();
      await serving.reload({ canary: 0.25 });
      const place = jest.spyOn(Math, 'random');

      place.mockReturnValueOnce(0.2).mockReturnValueOnce(0.3);
      const replies = [serving.batchedRun('a'), serving.batchedRun('b')];
      place.mockRestore();

      expect(await labelsOf(replies)).toEqual(['2', '1']);
      expect(serving.versions()).toMatchObject([
        { version: '1', role: 'active' },
        { version: '2', role: 'canary', share: 0.25 },
      ]);
    });

    it('[17.3] Each of several canaries gets its share of all calls', async () => {
      const { serving } = await startVersions();
      await serving.reload({ canary: 0.5 });
      await serving.reload({ canary: 0.25 });
      const place = jest.spyOn(Math, 'random');

      for (const draw of [0.49, 0.5, 0.49, 0.5, 0.51]) {
        place.mockReturnValueOnce(draw);
      }
      const replies = ['a', 'b', 'c'].map((row) => serving.batchedRun(row));
      place.mockRestore();
      // Half of the calls that the first canary leaves are a quarter of all.
      expect(await labelsOf(replies)).toEqual(['2', '3', '1']);

      const tenants = Array.from({ length: 2000 }, (_, each) => `tenant ${each}`);
      const labels = await labelsOf(tenants.map((tenant) => serving.batchedRun('a', { tenant })));
      const shareOf = (label: string) => labels.filter((each) => each === label).length / 2000;
      expect(shareOf('2')).toBeCloseTo(0.5, 1);
      expect(shareOf('3')).toBeCloseTo(0.25, 1);
    });

    it('[17.3] Canaries that would get more than all calls together are refused, and change nothing', async () => {
      const { versions, serving } = await startVersions();
      await serving.reload({ canary: 0.6 });
      await expect(serving.reload({ canary: 0.5 })).rejects.toThrow(sharesRefused(0.5));
      expect(versions.open).toEqual(['1', '2']);

      const third = await serving.reload({ canary: 0.4 });
      expect(() => (third.share = 0.7)).toThrow(sharesRefused(0.7));
      expect(third.share).toBe(0.4);
      serving.version('2').share = 0.3;
      third.share = 0.7;
      expect(third.share).toBe(0.7);
    });

    it('[17.3] Calls of a tenant all go to one version, also by the tenant function and by run and stream', async () => {
      const { serving } = await startVersions({
        queue: { tenant: (input) => String(input).slice(0, 2) },
      });
      await serving.reload({ canary: 0.5 });
      const tenants = Array.from({ length: 20 }, (_, index) => `${index + 10}`);

      for (const tenant of tenants) {
        const label = (await serving.batchedRun('x', { tenant })).split(':')[0]!;
        const replies = [
          serving.batchedRun(`${tenant} a`),
          serving.run(`${tenant} b`),
          lastValueFrom(serving.stream(`${tenant} c`)).then(({ output }) => output),
        ];
        expect(await labelsOf(replies)).toEqual([label, label, label]);
      }
      const used = serving.versions().map(({ counters }) => counters.answered);
      expect(used.every((answered) => answered > 0)).toBe(true);
    });

    it('[17.3] An explicit version beats the canary, and the shares', async () => {
      const { serving } = await startVersions();
      await serving.reload({ version: 'next', canary: 0 });

      expect(await serving.batchedRun('a')).toBe('1:a');
      expect(await serving.batchedRun('a', { version: 'next' })).toBe('next:a');
      expect(await serving.run('a', { version: 'next' })).toBe('next:a');
      const events = await lastValueFrom(serving.stream('a', { version: 'next' }).pipe(toArray()));
      expect(events).toMatchObject([{ output: 'next:a' }]);
    });

    it('[17.3] A call for a version that is not there fails with the versions that are', async () => {
      const { serving } = await startVersions();
      const unknown = new UnknownVersionError('Serving "net" has no version "9"; it has "1"');

      for (const call of [
        serving.batchedRun('a', { version: '9' }),
        serving.run('a', { version: '9' }),
        lastValueFrom(serving.stream('a', { version: '9' })),
      ]) {
        await expect(call).rejects.toThrow(unknown);
      }
    });

    it('[E11] A call for a version that is not there is counted, and has its events', async () => {
      const { serving } = await startVersions();
      const ends: unknown[] = [];
      serving.eventsOf('call:end').subscribe(({ mode, error }) => ends.push([mode, error]));
      const unknown = expect.any(UnknownVersionError);

      await failureOf(serving.batchedRun('a', { version: '9' }));
      await failureOf(serving.run('a', { version: '9' }));
      await failureOf(lastValueFrom(serving.stream('a', { version: '9' })));

      expect(serving.counters().failed).toEqual({ SERVING_UNKNOWN_VERSION: 3 });
      expect(ends).toEqual([
        ['batched', unknown],
        ['inline', unknown],
        ['stream', unknown],
      ]);
    });

    it('[17.3] Promotion gives the canary all calls, and the version before is freed', async () => {
      const { versions, serving } = await startVersions();
      const canary = await serving.reload({ canary: 0.1 });

      await canary.promote();
      const replies = Array.from({ length: 10 }, (_, row) => serving.batchedRun(row));
      await later(FREED);

      expect(new Set(await labelsOf(replies))).toEqual(new Set(['2']));
      expect(versions.open).toEqual(['2']);
      await expect(canary.promote()).resolves.toBeUndefined();
      await expect(serving.version('2').promote()).resolves.toBeUndefined();
    });

    it('[N15] The share of a canary changes while it runs, and its tenants stay', async () => {
      const { serving } = await startVersions();
      const canary = await serving.reload({ canary: 0.05 });
      const tenants = Array.from({ length: 400 }, (_, i) => `t${i}`);
      const taken = async (): Promise<Set<string>> => {
        const labels = await labelsOf(tenants.map((tenant) => serving.batchedRun('a', { tenant })));
        return new Set(tenants.filter((_, i) => labels[i] === '2'));
      };

      const few = await taken();
      serving.version('2').share = 0.2;
      const more = await taken();
      canary.share = 1;

      expect(serving.versions().at(-1)).toMatchObject({ version: '2', share: 1 });
      expect((await taken()).size).toBe(400);
      expect([...few].filter((tenant) => !more.has(tenant))).toEqual([]);
      expect([few.size > 5, more.size > 2 * few.size]).toEqual([true, true]);
      canary.share = 0;
      expect((await taken()).size).toBe(0);
    });

    it('[N15] A share that is no number from 0 to 1, or of a version without one, is refused', async () => {
      const { serving } = await startVersions();
      const canary = await serving.reload({ canary: 0.5 });

      expect(() => (canary.share = 2)).toThrow(
        'Serving "net", version "2": share is 2; allowed is a number from 0 to 1',
      );
      expect(() => (serving.version('1').share = 0.5)).toThrow(
        'version "1": it is active, and has no share of the calls that could change',
      );
      expect([canary.share, serving.version('1').share]).toEqual([0.5, undefined]);
    });

    it('[N15] Rollback of a promoted version loads the one before again, and loses no call', async () => {
      const { versions, serving } = await startVersions();
      const canary = await serving.reload({ canary: 0.1 });
      await canary.promote();
      await later(FREED);
      versions.hold('load 1');

      const back = canary.rollback();
      await turn();
      expect(await serving.batchedRun('a')).toBe('2:a');
      await expect(serving.reload()).rejects.toThrow('is loading version "1"');
      versions.release('load 1');
      await back;

      expect(await serving.batchedRun('b')).toBe('1:b');
      await later(FREED);
      expect(roles(serving)).toEqual(['1 active']);
      // One step back, and no further.
      await expect(serving.version('1').rollback()).rejects.toThrow('is the active one');
    });

    it('[N15] A version before that cannot be loaded leaves the promoted one', async () => {
      const { versions, serving } = await startVersions();
      const { version } = await serving.reload();
      await later(FREED);
      versions.fail('load 1', new Error('no file'));

      await expect(serving.version(version).rollback()).rejects.toThrow('no file');

      expect(await serving.batchedRun('a')).toBe('2:a');
      expect(roles(serving)).toEqual(['2 active']);
    });

    it('[17.3] Rollback takes the calls from the canary, which is freed', async () => {
      const { versions, serving } = await startVersions();
      const canary = await serving.reload({ canary: 1 });
      versions.hold('batch 2');
      const call = serving.batchedRun('a');
      await turn();

      await canary.rollback();

      expect(await serving.batchedRun('b')).toBe('1:b');
      versions.release('batch 2');
      expect(await call).toBe('2:a');
      await later(FREED);
      expect(versions.open).toEqual(['1']);
      await expect(canary.promote()).rejects.toThrow('version "2" has ended');
      await expect(canary.rollback()).rejects.toThrow('version "2" has ended');
    });

    it('[17.3] Calls of a canary without a working partition go to the active version at once', async () => {
      const { versions, serving } = await startVersions();
      await serving.reload({ canary: 1 });

      versions.lose('2');

      expect(await serving.batchedRun('a', { tenant: 't' })).toBe('1:a');
      await expect(serving.batchedRun('a', { version: '2' })).rejects.toThrow('Version 2 is lost');
      expect(serving.health().isReady).toBe(true);
    });

    it('[17.3] A tenant function that throws fails the call, and is counted', async () => {
      const { serving } = await startVersions({
        queue: {
          tenant: () => {
            throw new RangeError('no tenant');
          },
        },
      });
      await serving.reload({ canary: 1 });

      await expect(serving.batchedRun('a')).rejects.toThrow('no tenant');
      expect(serving.counters().failed).toEqual({ OTHER: 1 });
    });

    it('[17.3] A handle of a serving that was closed promotes nothing', async () => {
      const { serving } = await startVersions();
      const canary = await serving.reload({ canary: 0.5 });
      await serving.close();

      await expect(canary.promote()).rejects.toThrow(ServingClosedError);
      await expect(canary.rollback()).rejects.toThrow(ServingClosedError);
    });
  });

  describe('state', () => {
    it('[17.4] Sessions stay on the version that they began with, which is freed after the last one', async () => {
      const { versions, serving } = await startVersions({ sessions: {} });
      const old = serving.open();
      expect(await old.run('a')).toBe('1:a:1');

      await serving.reload();
      const young = serving.open();

      expect(await young.run('b')).toBe('2:b:1');
      await later(1000);
      expect(await old.run('c')).toBe('1:c:2');
      expect(versions.open).toEqual(['1', '2']);
      await old.close();
      await later(FREED);
      expect(versions.open).toEqual(['2']);
      await young.close();
    });

    it('[17.4] A session that its caller forgets holds its version no longer than sessions.idle', async () => {
      const { versions, serving } = await startVersions({ sessions: { idle: 1000 } });
      await serving.open().run('a');

      await serving.reload();
      await later(1000 + FREED);

      expect(versions.open).toEqual(['2']);
    });

    it('[17.4] Sessions of a tenant open on the same version, or on the one that they ask for', async () => {
      const { serving } = await startVersions({ sessions: {} });
      await serving.reload({ canary: 1 });
      const sessions = [serving.open({ tenant: 'a' }), serving.open({ version: '1' })];

      expect(await labelsOf(sessions.map((session) => session.run('a')))).toEqual(['2', '1']);
      expect(() => serving.open({ version: '9' })).toThrow(UnknownVersionError);
      await Promise.all(sessions.map((session) => session.close()));
    });

    it('[17.4] A stream without an end stays on the version that it began with', async () => {
      const { versions, serving } = await startVersions();
      const input = new Subject<string>();
      const replies: unknown[] = [];
      const stream = serving.stream(input).subscribe((event) => replies.push(event));
      await turn();
      input.next('a');
      await turn();

      await serving.reload();
      await later(1000);
      input.next('b');
      await turn();
      input.complete();
      await later(FREED);

      expect(replies.map((event) => (event as { output: unknown }).output)).toEqual([
        ['1:a'],
        ['1:b'],
      ]);
      expect(versions.open).toEqual(['2']);
      stream.unsubscribe();
    });

    it('[17.4] A consumer may read a stream after its version was freed, and counts as answered', async () => {
      const { versions, serving } = await startVersions();
      const stream = serving.stream([Batch.stack(['a']), Batch.stack(['b'])]);
      const iterator = stream[Symbol.asyncIterator]();
      const first = await iterator.next();
      await turn();

      await serving.reload();
      await later(FREED);
      const open = [...versions.open];
      const second = await iterator.next();
      await iterator.next();

      expect([first.value, second.value]).toMatchObject([{ output: ['1:a'] }, { output: ['1:b'] }]);
      expect(open).toEqual(['2']);
      expect(serving.counters().answered).toBe(1);
    });
  });

  describe('shared answers', () => {
    it('[17.5] Calls do not join a call of another version', async () => {
      const { versions, serving } = await startVersions({ deduplication: { singleFlight: true } });
      versions.hold('batch 1');
      const before = serving.batchedRun('a');
      await turn();

      await serving.reload();

      expect(await serving.batchedRun('a')).toBe('2:a');
      versions.release('batch 1');
      expect(await before).toBe('1:a');
    });

    it('[17.5] A version does not find the cached replies of another', async () => {
      const entries = new Map<string, string>();
      const store = {
        get: (key: string) => Promise.resolve(entries.get(key)),
        set: (key: string, value: string) => Promise.resolve(entries.set(key, value)),
      };
      const versions = new LabelledVersions();
      const serving = versions.serving(
        { name: 'net', deduplication: { cache: { ttl: 60_000 } } },
        () => store,
      );
      await start(serving);
      expect(await serving.batchedRun('a')).toBe('1:a');
      expect(await serving.batchedRun('a')).toBe('1:a');

      await serving.reload();

      expect(await serving.batchedRun('a')).toBe('2:a');
      expect(versions.batches).toEqual([['1:a'], ['2:a']]);
    });
  });

  describe('observation', () => {
    it('[17.6] Events carry the version of their call or batch', async () => {
      const { serving } = await startVersions();
      const seen: string[] = [];
      serving.events$.subscribe((event: ServingEvent) =>
        seen.push(`${event.type} ${event.version}`),
      );

      await serving.batchedRun('a');
      await serving.reload({ version: 'next' });
      await serving.batchedRun('b');

      const types = ['call:start', 'batch:start', 'batch:end', 'call:end'];
      expect(seen).toEqual([
        ...types.map((type) => `${type} 1`),
        ...types.map((type) => `${type} next`),
      ]);
    });

    it('[17.6] versions() has the figures of each version, and counters() those of all', async () => {
      const { versions, serving } = await startVersions();
      await serving.batchedRun('a');
      await serving.reload({ canary: 0 });
      versions.fail('batch 2', new Error('bad'));
      await failureOf(serving.batchedRun('b', { version: '2' }));

      expect(serving.versions()).toMatchObject([
        { version: '1', role: 'active', counters: { answered: 1, failed: {} } },
        {
          version: '2',
          role: 'canary',
          share: 0,
          counters: { answered: 0, failed: { SERVING_BATCH_FAILED: 1 }, failedBatches: 1 },
          partitions: [{ state: 'up' }],
        },
      ]);
      expect(serving.counters()).toMatchObject({
        answered: 1,
        failed: { SERVING_BATCH_FAILED: 1 },
        batches: 2,
      });
    });

    it('[17.6] The counts of versions that have ended stay in the totals', async () => {
      const { serving } = await startVersions();
      for (let version = 1; version <= 3; version++) {
        await serving.batchedRun('a');
        await serving.reload();
        await later(FREED);
      }

      expect(serving.versions()).toHaveLength(1);
      expect(serving.counters()).toMatchObject({ answered: 3, batches: 3, rows: 3 });
    });
  });
});
