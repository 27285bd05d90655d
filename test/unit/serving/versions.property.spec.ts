import { describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { Batch, type LocalServing, type ServingVersion } from 'nestjs-serving';
import { failureOf } from '../../fixtures/async/failure-of.js';
import { later, passTime, useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { LabelledVersions } from '../../fixtures/serving/labelled-versions.js';
import { silenceLog } from '../../fixtures/silent-log.js';

const FREED = 100;

/** A call: how it is made, and the labels that may answer it. */
interface Made {
  readonly rows: readonly string[];
  readonly reply: Promise<unknown>;
  readonly labels: readonly string[];
}

const step = fc.oneof(
  {
    weight: 6,
    arbitrary: fc.record({
      kind: fc.constant('call' as const),
      rows: fc.integer({ min: 1, max: 9 }),
      by: fc.constantFrom('batchedRun' as const, 'run' as const, 'stream' as const),
      tenant: fc.constantFrom(undefined, 'a', 'b'),
    }),
  },
  {
    weight: 3,
    arbitrary: fc.record({
      kind: fc.constant('reload' as const),
      canary: fc.constantFrom(undefined, 0, 0.5, 1),
      fails: fc.constantFrom('no', 'load', 'batch'),
      isAwaited: fc.boolean(),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('promote' as const), which: fc.nat() }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('rollback' as const), which: fc.nat() }) },
  {
    weight: 2,
    arbitrary: fc.record({ kind: fc.constant('wait' as const), ms: fc.nat({ max: 60 }) }),
  },
);

type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;

class Play {
  private readonly versions = new LabelledVersions();
  private readonly serving: LocalServing<unknown, string>;
  private readonly handles: ServingVersion[] = [];
  private readonly reloads: Promise<unknown>[] = [];
  private readonly made: Made[] = [];
  private rows = 0;
  private label = 1;

  constructor(batchSize: number, batchTimeout: number, partitions: number) {
    this.serving = this.versions.serving({
      name: 'net',
      batchSize,
      batchTimeout,
      partitions,
      warmUp: ['warm'],
    });
  }

  async run(steps: readonly Step[]): Promise<void> {
    await this.serving.start();
    for (const each of steps) {
      await this.take(each);
    }
    await Promise.all(this.reloads);
    await later(FREED);
  }

  /** What was promised and did not happen. */
  async faults(): Promise<readonly string[]> {
    const faults: string[] = [];
    for (const { rows, reply, labels } of this.made) {
      const answer = [await passTime(reply)].flat().map(String);
      const [label = ''] = answer[0]!.split(':');
      if (!labels.includes(label)) {
        faults.push(`${answer.join()} by a version that had no calls then: ${labels.join()}`);
      }
      if (answer.join() !== rows.map((row) => `${label}:${row}`).join()) {
        faults.push(`${answer.join()} in place of ${rows.join()}`);
      }
    }
    await later(FREED);
    const ran = this.versions.batches.flat().filter((row) => !row.endsWith(':warm'));
    if (ran.length !== this.rows) {
      faults.push(`${ran.length} rows ran of ${this.rows}`);
    }
    const mixed = this.versions.batches.filter(
      (batch) => new Set(batch.map((row) => row.split(':')[0])).size > 1,
    );
    faults.push(...mixed.map((batch) => `${batch.join()} in one batch`));
    const { answered } = this.serving.counters();
    if (answered !== this.made.length) {
      faults.push(`${answered} calls counted of ${this.made.length}`);
    }
    const loaded = this.serving.versions().map(({ version }) => version);
    const open = [...new Set(this.versions.open)];
    if (open.toSorted().join() !== loaded.toSorted().join()) {
      faults.push(`open are ${open.join()}, and known are ${loaded.join()}`);
    }
    await this.serving.close();
    faults.push(...this.versions.open.map((label) => `${label} is open after the end`));
    return faults;
  }

  private async take(each: Step): Promise<void> {
    switch (each.kind) {
      case 'call':
        return this.call(each);
      case 'reload':
        return this.reload(each);
      case 'wait':
        return later(each.ms);
      default: {
        const handle = this.handles[each.which % this.handles.length];
        // One that has ended, or is the only one, is refused.
        await (handle && failureOf(handle[each.kind]()));
      }
    }
  }

  private call({ rows: count, by, tenant }: Extract<Step, { kind: 'call' }>): void {
    const rows = Array.from({ length: count }, () => `${++this.rows}`);
    const input = Batch.stack(rows);
    const labels = this.serving
      .versions()
      .filter(({ role }) => role === 'active' || role === 'canary')
      .map(({ version }) => version);
    const reply =
      by === 'stream' ? this.streamed(input, tenant) : this.serving[by](input, { tenant });
    this.made.push({ rows, reply, labels });
  }

  private async streamed(input: Batch, tenant: string | undefined): Promise<unknown[]> {
    const outputs: unknown[] = [];
    for await (const event of this.serving.stream(input, { tenant })) {
      outputs.push('output' in event ? event.output : undefined);
    }
    return outputs.flat();
  }

  private async reload({
    canary,
    fails,
    isAwaited,
  }: Extract<Step, { kind: 'reload' }>): Promise<void> {
    const version = `${++this.label}`;
    if (fails !== 'no') {
      this.versions.fail(`${fails} ${version}`, new Error('as planned'));
    }
    const options = canary === undefined ? { version } : { version, canary };
    const reload = this.serving.reload(options).then(
      (handle) => this.handles.push(handle),
      () => undefined,
    );
    this.reloads.push(reload);
    await (isAwaited && reload);
  }
}

describe('Versions', () => {
  useVirtualTime();

  it('[17.1] [17.2] [17.3] Whatever is reloaded, promoted and rolled back: each call is answered completely, once, by one version that had calls then', async () => {
    silenceLog();
    await fc.assert(
      fc.asyncProperty(
        fc.array(step, { minLength: 1, maxLength: 40 }),
        fc.integer({ min: 1, max: 4 }),
        fc.constantFrom(0, 5),
        fc.integer({ min: 1, max: 2 }),
        async (steps, batchSize, batchTimeout, partitions) => {
          const play = new Play(batchSize, batchTimeout, partitions);
          await play.run(steps);

          expect(await play.faults()).toEqual([]);
        },
      ),
    );
  });
});

/** Which of the tenants a canary of that share has. */
async function inCanary(
  name: string,
  canary: string,
  share: number,
  tenants: readonly string[],
): Promise<ReadonlySet<string>> {
  const serving = new LabelledVersions().serving({ name, rollout: { version: 'first' } });
  await passTime(serving.start());
  await passTime(serving.reload({ version: canary, canary: share }));
  const chosen = tenants.filter((tenant) => serving.local.versionFor('a', { tenant }) === canary);
  await passTime(serving.close());
  return new Set(chosen);
}

describe('The place of a tenant', () => {
  useVirtualTime();

  it('[17.3] A share of tenants is in a canary of that share, for each form of name', async () => {
    silenceLog();
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom('', 'tenant-', 'org/7/user/'),
        fc.string({ minLength: 1, maxLength: 8 }),
        fc.double({ min: 0.05, max: 0.95, noNaN: true }),
        async (prefix, version, share) => {
          const tenants = Array.from({ length: 4000 }, (_, index) => `${prefix}${index}`);
          const { size } = await inCanary('net', version, share, tenants);

          // Five standard deviations.
          expect(Math.abs(size / tenants.length - share)).toBeLessThan(
            5 * Math.sqrt((share * (1 - share)) / tenants.length),
          );
        },
      ),
      { numRuns: 30 },
    );
  });

  it('[17.3] A larger share keeps the tenants of a smaller one', async () => {
    silenceLog();
    const tenants = Array.from({ length: 400 }, (_, index) => `tenant-${index}`);
    const few = await inCanary('net', '2', 0.2, tenants);
    const many = await inCanary('net', '2', 0.6, tenants);

    expect([...few].every((tenant) => many.has(tenant))).toBe(true);
  });

  it('[17.3] Two versions, or servings, choose other tenants', async () => {
    silenceLog();
    const tenants = Array.from({ length: 4000 }, (_, index) => `tenant-${index}`);
    const first = await inCanary('net', '2', 0.5, tenants);

    for (const [name, version] of [
      ['net', '3'],
      ['web', '2'],
    ] as const) {
      const other = await inCanary(name, version, 0.5, tenants);
      const both = tenants.filter((tenant) => first.has(tenant) && other.has(tenant)).length;
      expect(Math.abs(both / 4000 - 0.25)).toBeLessThan(0.04);
    }
  });
});
