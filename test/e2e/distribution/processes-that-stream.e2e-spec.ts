import { expect, it } from '@jest/globals';
import { NodeLostError, type OutputEvent, SlowConsumerError } from 'nestjs-serving';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { iterated } from '../../fixtures/async/streams.js';
import { useClusterProcesses } from '../../fixtures/cluster/use-cluster-processes.js';
import { describeWirings } from '../../fixtures/cluster/wirings.js';

interface Step {
  readonly step: number;
  readonly filling: Uint8Array;
}

/** The step of a single row, streamed alone or in a batch. */
type StepOutput = Step | readonly [Step];

type StepEvent = OutputEvent<StepOutput>;

const counter = { name: 'counter', as: 'counting', batchSize: 1 } as const;
const KIB = 1024;
const MIB = 1024 * KIB;
const upTo = (last: number) => Array.from({ length: last }, (_, i) => i + 1);
const outputsOf = (events: readonly StepEvent[]) => events.map(({ output }) => [output].flat()[0]!);
const stepsOf = (events: readonly StepEvent[]) => outputsOf(events).map(({ step }) => step);

describeWirings('A stream of another process', (wiring) => {
  const { node, client } = useClusterProcesses(wiring);

  it('[11] [8.2] A stream waits for its reader, loses nothing, and is bounded at its owner', async () => {
    const owner = await node({ servings: [counter, { name: 'm' }] });
    const web = await client();
    await web.untilNodes('counter', 1);
    const sequence = web.servings.stream<object, StepOutput>('counter', {
      steps: 400,
      bytes: 128 * KIB,
    });
    const stream = sequence[Symbol.asyncIterator]();
    const first = await stream.next();

    // While the stream is not read, its owner has the time that these calls take, until it stops
    // counting.
    let ahead = 0;
    while (ahead < owner.steps) {
      ahead = owner.steps;
      for (let call = 0; call < 50; call++) {
        await web.servings.batchedRun('m', { id: `${ahead}-${call}`, numbers: [call] });
      }
    }
    const rest = await iterated({ [Symbol.asyncIterator]: () => stream });

    // A window of 1 MiB and the steps that the serving has requested ahead.
    expect(ahead).toBeLessThan(30);
    expect(stepsOf([first.value!, ...rest])).toEqual(upTo(400));
    expect(
      outputsOf(rest).every(
        ({ step, filling }) => filling.length === 128 * KIB && filling[9] === step % 256,
      ),
    ).toBe(true);
  });

  it('[11] [8.2] A stream does not wait when its reader has room for all of it', async () => {
    const distribution = { window: { messages: 10_000, bytes: 1024 * MIB } };
    const owner = await node({ servings: [counter, { name: 'm' }], distribution });
    const web = await client(distribution);
    await web.untilNodes('counter', 1);
    const sequence = web.servings.stream<object, StepOutput>('counter', {
      steps: 200,
      bytes: 128 * KIB,
    });
    const stream = sequence[Symbol.asyncIterator]();
    const first = await stream.next();

    await owner.process.messages('counted');

    expect(owner.steps).toBe(200);
    expect(
      stepsOf([first.value!, ...(await iterated({ [Symbol.asyncIterator]: () => stream }))]),
    ).toEqual(upTo(200));
  });

  it('[11] [8.2] A stream whose batch does not wait fails when its reader is far behind', async () => {
    const owner = await node({ servings: [{ name: 'stepper', as: 'stepping', batchSize: 1 }] });
    const web = await client();
    await web.untilNodes('stepper', 1);
    const sequence = web.servings.stream<object, StepOutput>('stepper', { steps: 5000, bytes: 8 });
    const stream = sequence[Symbol.asyncIterator]();
    const steps = stepsOf([(await stream.next()).value!]);

    await owner.process.messages('counted');
    const failure = await failureOf(
      (async () => {
        for await (const event of { [Symbol.asyncIterator]: () => stream }) {
          steps.push(...stepsOf([event]));
        }
      })(),
    );

    expect(failure).toBeInstanceOf(SlowConsumerError);
    expect(steps).toEqual(upTo(steps.length));
    expect(owner.steps).toBeLessThan(2000);
  });

  it('[11] [8.2] A stream ends at its owner when its reader leaves, is killed or is stopped', async () => {
    const distribution = { heartbeat: 100, downAfter: 2000 };
    const owner = await node({ servings: [counter], distribution });
    const reads = { serving: 'counter', input: { steps: 1e9, bytes: KIB }, most: 3 };
    const web = await client(distribution);
    await web.untilNodes('counter', 1);

    for await (const event of web.servings.stream<object, StepOutput>('counter', reads.input)) {
      expect(event).toMatchObject({ output: [{ step: 1 }] });
      break;
    }
    await owner.process.messages('counted', 1);
    expect(owner.steps).toBeLessThan(100);
    for (const [before, signal] of (['SIGKILL', 'SIGSTOP'] as const).entries()) {
      const reader = await node({ reads, distribution });
      expect(await reader.process.messages('read', 3)).toEqual([1, 2, 3]);
      reader.process.kill(signal);
      await owner.process.messages('counted', before + 2);
    }
  });

  it('[11] [8.2] A stream ends also at an owner that hung and counted as lost, when it goes on', async () => {
    const distribution = { heartbeat: 100, downAfter: 1000 };
    const owner = await node({ servings: [counter], distribution });
    const web = await client({ ...distribution, probeAfter: 1_000_000 });
    await web.untilNodes('counter', 1);
    const sequence = web.servings.stream<object, StepOutput>('counter', { steps: 1e9, bytes: KIB });
    const stream = sequence[Symbol.asyncIterator]();
    await stream.next();

    owner.process.kill('SIGSTOP');
    const failure = await failureOf(iterated({ [Symbol.asyncIterator]: () => stream }));
    owner.process.kill('SIGCONT');
    await owner.process.messages('counted');

    expect(failure).toBeInstanceOf(NodeLostError);
  });

  it('[11] A stream whose owner is killed fails after the events that it had sent', async () => {
    const owner = await node({ servings: [counter] });
    const web = await client();
    await web.untilNodes('counter', 1);
    const sequence = web.servings.stream<object, StepOutput>('counter', { steps: 1e9, bytes: KIB });
    const stream = sequence[Symbol.asyncIterator]();
    const steps: number[] = [];

    const failure = await failureOf(
      (async () => {
        for (;;) {
          const { value } = await stream.next();
          if (steps.push(...stepsOf([value!])) === 500) {
            owner.process.kill('SIGKILL');
          }
        }
      })(),
    );

    expect(failure).toBeInstanceOf(NodeLostError);
    expect(steps.length).toBeGreaterThanOrEqual(500);
    expect(steps).toEqual(upTo(steps.length));
  });
});
