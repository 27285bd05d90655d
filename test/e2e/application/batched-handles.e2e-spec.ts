import { afterEach, describe, expect, it } from '@jest/globals';
import { Injectable, type INestApplicationContext, Scope, type Type } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  asCaller,
  Batched,
  DeadlineExceededError,
  InvalidInputError,
  InvalidServingError,
  type Serving,
  ServingModule,
  ServingService,
  UnknownServingError,
} from 'nestjs-serving';
import { BatchedMethods } from '../../../lib/nest/batched/batched-methods.js';
import { iterated } from '../../fixtures/async/streams.js';

@Injectable()
class Joiner {
  readonly runs: string[][] = [];
  readonly ink = '-';

  @Batched({ batchTimeout: 5, queue: { priority: (_left: string, right: string) => right.length } })
  async join(left: string[], right: string[]): Promise<(string | Error)[]> {
    this.runs.push(left);
    return left.map((text, i) =>
      text === 'bad' ? new RangeError('a bad text') : `${text}${this.ink}${right[i]}`,
    );
  }
}

@Injectable()
class Hung {
  @Batched({ shutdown: { timeout: 0 } })
  hang(_rows: string[]): Promise<string[]> {
    return new Promise(() => {});
  }
}

@Injectable()
class Prompt {
  @Batched({ batchSize: { latencyTarget: 500 } })
  async upper(rows: string[]): Promise<string[]> {
    return rows.map((row) => row.toUpperCase());
  }
}

@Injectable({ scope: Scope.TRANSIENT })
class Copied {
  @Batched()
  async copy(rows: string[]): Promise<string[]> {
    return rows;
  }
}

@Injectable()
class Plain extends Joiner {
  // @ts-expect-error -- The method of the base class takes lists.
  override async join(left: string, right: string): Promise<string> {
    return `${left} and ${right}`;
  }
}

@Injectable()
class Louder extends Joiner {
  @Batched()
  override async join(left: string[]): Promise<string[]> {
    return left.map((text) => text.toUpperCase());
  }
}

describe('The handle of a batched method', () => {
  let app: INestApplicationContext | undefined;

  afterEach(async () => {
    await app?.close();
    app = undefined;
  });

  async function start<Input, Output>(
    provider: Type,
    method: string,
  ): Promise<Serving<Input, Output>> {
    class AppModule {}
    app = await NestFactory.createApplicationContext(
      { module: AppModule, imports: [ServingModule.forRoot({})], providers: [provider] },
      { logger: false },
    );
    return app.get(ServingService).get(`${provider.name}.${method}`) as Serving<Input, Output>;
  }

  it('[10.2] [M1] The input of a call is the list of arguments, and calls share batches with those on the instance', async () => {
    const handle = await start<[string, string], string>(Joiner, 'join');
    const joiner = app!.get(Joiner);

    const replies = await Promise.all([
      handle.batchedRun(['a', 'b']),
      joiner.join('c' as never, 'd' as never) as unknown as Promise<string>,
      handle.batchedRun(['e', 'f']),
    ]);

    expect(replies).toEqual(['a-b', 'c-d', 'e-f']);
    expect(joiner.runs).toEqual([['a', 'c', 'e']]);
    expect(await handle.run(['g', 'h'])).toBe('g-h');
    expect(await iterated(handle.stream(['i', 'j']))).toMatchObject([{ output: 'i-j' }]);
    await expect(handle.batchedRun(['bad', 'x'])).rejects.toThrow(new RangeError('a bad text'));
  });

  it('[7.3] [M1] A call has a signal, a timeout and a priority of its own', async () => {
    const handle = await start<[string], string>(Hung, 'hang');
    const leaving = new AbortController();
    const left = handle.batchedRun(['a'], { signal: leaving.signal });

    leaving.abort(new RangeError('gone'));

    await expect(left).rejects.toThrow(new RangeError('gone'));
    await expect(handle.batchedRun(['b'], { timeout: 5 })).rejects.toThrow(DeadlineExceededError);
    await expect(handle.batchedRun(['c'], { priority: 11 })).rejects.toThrow(
      'priority 11; allowed is a whole number from -10 to 10',
    );
  });

  it('[15.1] [15.4] [10.2] A batched method has the latency target of its decorator', async () => {
    const handle = await start<[string], string>(Prompt, 'upper');

    expect(await Promise.all(['a', 'b'].map((row) => handle.batchedRun([row])))).toEqual([
      'A',
      'B',
    ]);

    expect(handle.targets()).toMatchObject([{ key: 'default', latencyTarget: 500 }]);
    expect(() => handle.setBatchTimeout(5)).toThrow('latencyTarget 500 decides when a batch runs');
  });

  it.each(['a', undefined, { 0: 'a' }])(
    '[M1] An input that is no list is refused: %j',
    async (input) => {
      const handle = await start(Joiner, 'join');
      const message = /^Serving "Joiner.join" is a @Batched\(\) method: its input is the list of/;

      for (const call of [
        handle.batchedRun(input),
        handle.run(input),
        iterated(handle.stream(input)),
      ]) {
        await expect(call).rejects.toThrow(InvalidInputError);
        await expect(call).rejects.toThrow(message);
      }
    },
  );

  it.each(['batchedRun', 'run', 'stream'] as const)(
    '[9.3] [M1] Shutdown waits for a method that only its handle has called: %s',
    async (how) => {
      const handle = await start<[string, string], string>(Joiner, 'join');
      const methods = app!.get(BatchedMethods, { strict: false });
      expect(methods.shutdownLimits).toEqual([]);

      await (how === 'stream' ? iterated(handle.stream(['a', 'b'])) : handle[how](['a', 'b']));

      expect(methods.shutdownLimits).toEqual([30_000]);
    },
  );

  it('[M1] A method that a class overrides without @Batched() has no handle, which would run the base class', async () => {
    await expect(start(Plain, 'join')).rejects.toThrow(UnknownServingError);
    expect(app!.get(ServingService).health()).toEqual([]);
    await expect(asCaller(app!.get(Plain)).join('a', 'b')).resolves.toBe('a and b');
  });

  it('[M1] A method that a class overrides with @Batched() has one handle', async () => {
    const handle = await start<[string, string], string>(Louder, 'join');

    expect(app!.get(ServingService).health()).toHaveLength(1);
    await expect(handle.batchedRun(['a', 'b'])).resolves.toBe('A');
  });

  it('[M1] A call of a method without its instance is refused with the reason', async () => {
    await start(Prompt, 'upper');
    const { upper } = asCaller(app!.get(Prompt));

    expect(() => upper('a')).toThrow(
      new InvalidServingError(
        'Prompt.upper is @Batched() and was called without its instance; call it on that, or bind it',
      ),
    );
  });

  it('[M1] A call by the handle is refused for a class with several instances', async () => {
    const handle = await start<[string], string>(Copied, 'copy');

    const call = handle.batchedRun(['a']);

    await expect(call).rejects.toThrow(InvalidServingError);
    await expect(call).rejects.toThrow('call it on one of them');
  });
});
