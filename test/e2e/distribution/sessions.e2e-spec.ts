import { describe, expect, it } from '@jest/globals';
import {
  type BatchContext,
  type CallEndEvent,
  DeadlineExceededError,
  InvalidServingError,
  OverloadedError,
  PartitionLostError,
  ServingClosedError,
  SessionEndedError,
  UnknownServingError,
  type SessionsOptions,
} from 'nestjs-serving';
import type { FunctionServingDefinition } from '../../../lib/core/definition/serving-definition.js';
import { until } from '../../fixtures/async/awaited.js';
import { outcomeOf } from '../../fixtures/async/outcome-of.js';
import { useCluster } from '../../fixtures/cluster/use-cluster.js';

const failures: Readonly<Record<string, Error>> = {
  fail: new RangeError('a row fails'),
  lost: new PartitionLostError('another serving is lost'),
  ended: new SessionEndedError('a session of another serving has ended'),
};

/** Sessions whose state, and the reply of each step, is the list of their rows. */
class Tally {
  readonly batches: (readonly string[])[] = [];
  readonly states: unknown[] = [];
  /** Batches that wait for the test. */
  readonly held: (() => void)[] = [];
  isHolding = false;
  readonly definition: FunctionServingDefinition;

  constructor(sessions: SessionsOptions | null = {}, batchTimeout = 0) {
    this.definition = {
      name: 'tally',
      batchTimeout,
      model: {
        useFactory: () => (rows: readonly string[], context) => this.run(rows, context),
        sessions: sessions ?? undefined,
      },
    };
  }

  private async run(rows: readonly string[], { states }: BatchContext): Promise<unknown[]> {
    this.batches.push(rows);
    if (this.isHolding) {
      await new Promise<void>((go) => this.held.push(go));
    }
    return rows.map((row, i) => {
      states[i] = [...((states[i] as readonly string[] | undefined) ?? []), row];
      return failures[row] ?? states[i];
    });
  }
}

describe('A session of another node', () => {
  const cluster = useCluster();

  async function pair(tally: Tally, owners = 1) {
    const nodes = [];
    for (let owner = 0; owner < owners; owner++) {
      nodes.push(await cluster.node({ servings: [tally.definition] }));
    }
    const web = await cluster.node({ drainTimeout: 600_000, discoveryTimeout: 10 });
    await web.untilNodes('tally', owners);
    return { nodes, web, open: () => web.servings.open<string, readonly string[]>('tally') };
  }

  it('[16.9] Its calls are steps from the state on that node, in their order, and share batches with other sessions', async () => {
    const tally = new Tally({}, 30);
    const { open } = await pair(tally);
    const [a, b] = [open(), open()];

    const replies = await Promise.all([a.run('a1'), b.run('b1'), a.run('a2'), b.run('b2')]);

    expect(replies).toEqual([['a1'], ['b1'], ['a1', 'a2'], ['b1', 'b2']]);
    expect(tally.batches).toEqual([
      ['a1', 'b1'],
      ['a2', 'b2'],
    ]);
    await a.close();
    await expect(a.run('a3')).rejects.toThrow('The session has ended: it was closed');
    expect(await b.run('b3')).toEqual(['b1', 'b2', 'b3']);
  });

  it("[FU79] Its calls have their events on the caller's node, also failed and refused ones", async () => {
    const { web } = await pair(new Tally());
    const serving = web.servings.get<string, readonly string[]>('tally');
    const ends: CallEndEvent[] = [];
    serving.eventsOf('call:end').subscribe((end) => ends.push(end));
    const session = serving.open();
    await session.run('1');
    await expect(session.run('fail')).rejects.toThrow('a row fails');
    await session.close();
    await expect(session.run('2')).rejects.toThrow(SessionEndedError);

    const of = { serving: 'tally', mode: 'batched' };
    expect(ends).toMatchObject([
      { ...of, stage: 'running' },
      { ...of, stage: 'running', error: { message: expect.stringContaining('a row fails') } },
      { ...of, stage: 'preprocessing', error: { code: 'SERVING_SESSION_ENDED' } },
    ]);
    expect(ends[0]).not.toHaveProperty('error');
  });

  it('[16.9] [16.3] A call that fails, is cancelled or comes too late leaves the state as it was', async () => {
    const tally = new Tally();
    const { open } = await pair(tally);
    const session = open();
    await session.run('1');

    await expect(session.run('fail')).rejects.toThrow('a row fails');
    await expect(session.run('lost')).rejects.toThrow('another serving is lost');
    await expect(session.run('ended')).rejects.toThrow('a session of another serving has ended');
    tally.isHolding = true;
    const cancel = new AbortController();
    const cancelled = session.run('cancelled', { signal: cancel.signal });
    await until(() => tally.held.length === 1);
    cancel.abort(new Error('not wanted'));
    await expect(cancelled).rejects.toThrow('not wanted');
    const late = session.run('late', { timeout: 20 });
    await expect(late).rejects.toThrow(DeadlineExceededError);
    tally.isHolding = false;
    tally.held.forEach((go) => go());

    expect(await session.run('2')).toEqual(['1', '2']);
  });

  it('[16.9] It stays with its node, and ends with a typed error when that is lost', async () => {
    const { open, nodes } = await pair(new Tally(), 2);
    // So many that neither node gets all of them, which are distributed at random.
    const sessions = Array.from({ length: 24 }, open);
    await Promise.all(sessions.map((session) => session.run('1')));

    nodes[0]!.kill();
    const outcomes = await Promise.allSettled(sessions.map((session) => session.run('2')));

    const lost = outcomes.filter(({ status }) => status === 'rejected');
    expect(lost.length).toBeGreaterThan(0);
    expect(lost.length).toBeLessThan(24);
    for (const [i, outcome] of outcomes.entries()) {
      if (outcome.status === 'fulfilled') {
        expect(outcome.value).toEqual(['1', '2']);
      } else {
        expect(outcome.reason).toBeInstanceOf(SessionEndedError);
        await expect(sessions[i]!.run('3')).rejects.toThrow(SessionEndedError);
      }
    }
    expect(await open().run('1')).toEqual(['1']);
  });

  it('[16.9] A node that shuts down lets the step that runs end, and ends the session', async () => {
    const tally = new Tally();
    const { open, nodes } = await pair(tally);
    const session = open();
    await session.run('1');
    tally.isHolding = true;
    const running = session.run('2');
    await until(() => tally.held.length === 1);

    const closing = nodes[0]!.close();
    tally.held[0]!();

    expect(await running).toEqual(['1', '2']);
    await closing;
    await expect(session.run('3')).rejects.toThrow(SessionEndedError);
  });

  it('[16.9] A session that its node ends after sessions.idle has ended for its caller', async () => {
    const { open } = await pair(new Tally({ idle: 30 }));
    const session = open();
    await session.run('1');

    const ended = outcomeOf(
      (async () => {
        for (;;) {
          await new Promise((resolve) => setTimeout(resolve, 60));
          await session.run('2');
        }
      })(),
    );
    await until(() => 'outcome' in ended);

    expect(ended.outcome).toBeInstanceOf(SessionEndedError);
    expect((ended.outcome as Error).message).toContain('it had no call for 30 ms (sessions.idle)');
  });

  it('[16.9] A closed session gives its place on the node to another, and a full node is passed over', async () => {
    const tally = new Tally({ max: 1 });
    const { open } = await pair(tally, 2);
    const [first, second, third] = [open(), open(), open()];

    expect(await first.run('1')).toEqual(['1']);
    expect(await second.run('1')).toEqual(['1']);
    await expect(third.run('1')).rejects.toThrow(OverloadedError);
    await first.close();
    let reply: unknown;
    while (!reply) {
      reply = await third.run('1').catch(() => undefined);
    }

    expect(reply).toEqual(['1']);
  });

  it('[16.9] An open session does not delay the shutdown of its caller', async () => {
    const { open, web } = await pair(new Tally());
    const session = open();
    await session.run('1');

    await web.close();

    await expect(session.run('2')).rejects.toThrow(ServingClosedError);
  });

  it('[16.9] The first call says why there is no session', async () => {
    const { web } = await pair(new Tally(null));

    await expect(web.servings.open('tally').run('1')).rejects.toThrow(InvalidServingError);
    await expect(web.servings.open('other').run('1')).rejects.toThrow(UnknownServingError);
  });
});
