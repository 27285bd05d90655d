import { expect, it } from '@jest/globals';
import { NodeLostError, SessionEndedError } from 'nestjs-serving';
import type { ClusterOptions } from '../../../lib/extensions/distribution/options.js';
import { Callers } from '../../fixtures/http/callers.js';
import {
  type ClusterProcess,
  type ProcessServing,
  useClusterProcesses,
} from '../../fixtures/cluster/use-cluster-processes.js';
import { describeWirings } from '../../fixtures/cluster/wirings.js';

/** Busy machines pause, which must not count as the loss of a node. */
const byBeats = { heartbeat: 100, downAfter: 2000 };
/** The transport reports the loss. Missing heartbeats would do so far too late. */
const byTransport = { heartbeat: 100, downAfter: 60_000 };

/** The unfinished rows of the victim. There must be some for the test to mean anything. */
function strandedAt(victim: ClusterProcess): readonly string[] {
  const { stranded } = victim;
  expect(stranded.length).toBeGreaterThan(0);
  return stranded;
}

describeWirings('Processes of a cluster that fail', (wiring) => {
  const { node, client } = useClusterProcesses(wiring);

  /** Three nodes with the serving and a client that calls it. The first node is the victim. */
  async function underLoad(serving: Omit<ProcessServing, 'name'>, distribution: ClusterOptions) {
    const servings = [{ name: 'm', batchSize: 4, ...serving }];
    const nodes = await Promise.all([1, 2, 3].map(() => node({ servings, distribution })));
    const web = await client(distribution);
    await web.untilNodes('m', 3);
    const callers = new Callers(web.servings, 'm');
    await callers.answered(200);
    const [victim, ...others] = nodes as [ClusterProcess, ...ClusterProcess[]];
    return { web, callers, victim, others };
  }

  it('[11] When a process is killed under load others take over, no call fails, and its restart serves again', async () => {
    const { web, callers, victim, others } = await underLoad(
      { recovery: { idempotent: true } },
      byTransport,
    );
    await victim.hold();
    await victim.untilHeld();

    victim.process.kill('SIGKILL');
    await victim.process.ended;
    const stranded = strandedAt(victim);
    await web.untilNodes('m', 2);
    const next = await victim.again();
    await callers.answered(50, next.pid);
    await callers.end();

    callers.expectUnharmed();
    expect(stranded.filter((id) => callers.answers.get(id) === victim.pid)).toEqual([]);
    const runs = [next, ...others].flatMap(({ begun }) => begun);
    expect(new Set(runs).size).toBe(runs.length);
  });

  it('[11] When a process is stopped under load others take over, and it serves again when continued', async () => {
    const { web, callers, victim } = await underLoad({ recovery: { idempotent: true } }, byBeats);
    await victim.hold();
    await victim.untilHeld();

    victim.process.kill('SIGSTOP');
    const stranded = strandedAt(victim);
    await web.untilNodes('m', 2);
    await callers.answered(200);
    const answered = stranded.map((id) => callers.answers.get(id));
    victim.process.send('open');
    victim.process.kill('SIGCONT');
    await web.untilNodes('m', 3);
    await callers.answered(50, victim.pid);
    await callers.end();

    callers.expectUnharmed();
    expect(answered.filter((pid) => pid === undefined || pid === victim.pid)).toEqual([]);
    expect(victim.stranded).toEqual([]);
  });

  it('[11] When a process is killed under load, calls that must not run twice fail with the reason', async () => {
    const { callers, victim } = await underLoad(
      { recovery: { idempotent: false } },
      { ...byTransport, attempts: 1 },
    );
    await victim.hold();
    await victim.untilHeld();

    victim.process.kill('SIGKILL');
    await victim.process.ended;
    const stranded = strandedAt(victim);
    await callers.answered(200);
    await callers.end();

    expect(callers.wrong).toEqual([]);
    expect([...callers.failures.keys()]).toEqual(expect.arrayContaining([...stranded]));
    for (const failure of callers.failures.values()) {
      expect(failure).toBeInstanceOf(NodeLostError);
    }
  });

  it('[16.9] When a process is killed its sessions end, and those of others go on', async () => {
    const servings = [{ name: 'tally', as: 'tallying' as const }];
    const nodes = await Promise.all(
      [1, 2].map(() => node({ servings, distribution: byTransport })),
    );
    const web = await client(byTransport);
    await web.untilNodes('tally', 2);
    const sessions = Array.from({ length: 12 }, () =>
      web.servings.open<string, readonly string[]>('tally'),
    );
    for (const row of ['1', '2']) {
      await Promise.all(sessions.map((session) => session.run(row)));
    }

    nodes[0]!.process.kill('SIGKILL');
    await nodes[0]!.process.ended;
    const outcomes = await Promise.all(
      sessions.map((session) => session.run('3').catch((error: unknown) => error)),
    );

    const kept = outcomes.filter((outcome) => Array.isArray(outcome));
    const lost = outcomes.filter((outcome) => outcome instanceof SessionEndedError);
    expect(kept.length * lost.length).toBeGreaterThan(0);
    expect(kept.length + lost.length).toBe(12);
    expect(kept).toEqual(kept.map(() => ['1', '2', '3']));
    await Promise.all(sessions.map((session) => session.close()));
  });
});
