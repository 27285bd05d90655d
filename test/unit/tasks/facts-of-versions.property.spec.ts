import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { beforeEach, describe, expect, it } from '@jest/globals';
import * as fc from 'fast-check';
import { createServing, type LocalServing, type ServingVersion } from 'nestjs-serving';
import { type LabelScore, textClassification } from 'nestjs-serving/tasks';
import { silenceLog } from '../../fixtures/silent-log.js';
import { markedFiles, markOf } from '../../fixtures/tasks/written-models.js';

/**
 * Random changes of a task's servings: reloads of the same folder after its files have changed, of
 * other folders, of broken files, canaries, promotions and rollbacks, in two servings that share
 * their definition. Each answer must be that of one whole version, which had calls at that time:
 * tokenizer, weights and labels of a version only work with each other.
 */
describe('What a task reads beside its model, under any changes', () => {
  beforeEach(() => silenceLog());

  it('[FQ7] makes each answer that of one whole version that had the call', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { minLength: 4, maxLength: 16 }), async (steps) => {
        const play = new Play();
        try {
          await play.start();
          for (const each of steps) {
            await play.take(each);
          }
          expect(await play.faults()).toEqual([]);
        } finally {
          await play.end();
        }
      }),
      { numRuns: process.env['SEED'] === undefined ? 40 : 150 },
    );
  });
});

const which = fc.integer({ min: 0, max: 1 });
const step = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('call' as const),
      which,
      by: fc.constantFrom('batchedRun' as const, 'run' as const),
      /** A canary, if there is one. */
      named: fc.boolean(),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      kind: fc.constant('reload' as const),
      which,
      place: fc.constantFrom('same' as const, 'other' as const, 'files' as const),
      canary: fc.constantFrom(undefined, 0, 0.5),
      isBroken: fc.boolean(),
      /** Calls are made while it loads. */
      calls: fc.nat({ max: 3 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('promote' as const), which }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('rollback' as const), which }) },
);

type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;
type ReloadStep = Extract<Step, { kind: 'reload' }>;

/** One serving, and what must be true of its versions. */
interface Player {
  readonly serving: LocalServing<string, readonly LabelScore[]>;
  active: number;
  /** The folder that reloads without a model read; undefined for given files. */
  folder: string | undefined;
  canary:
    | {
        readonly version: ServingVersion;
        readonly mark: number;
        share: number;
        folder: string | undefined;
      }
    | undefined;
}

class Play {
  private readonly root = mkdtempSync(join(tmpdir(), 'facts-'));
  private readonly players: Player[] = [];
  private readonly calls: Promise<string[]>[] = [];
  private mark = 10;

  async start(): Promise<void> {
    const folder = this.write(markedFiles(this.mark));
    const definition = textClassification({
      name: 'net',
      model: { from: folder, isolation: 'none' },
    });
    for (const _ of [0, 1]) {
      const serving = createServing(definition);
      this.players.push({ serving, active: this.mark, folder, canary: undefined });
      await serving.start();
    }
  }

  async take(each: Step): Promise<void> {
    const player = this.players[each.which]!;
    const { canary } = player;
    if (each.kind === 'call') {
      this.call(player, each.by, each.named);
    } else if (each.kind === 'reload') {
      await this.reload(player, each);
    } else if (canary && each.kind === 'promote') {
      await this.settled();
      await canary.version.promote();
      Object.assign(player, { active: canary.mark, folder: canary.folder, canary: undefined });
    } else if (canary) {
      await this.settled();
      await canary.version.rollback();
      player.canary = undefined;
    }
  }

  async faults(): Promise<string[]> {
    return (await Promise.all(this.calls)).flat();
  }

  async end(): Promise<void> {
    await Promise.all(this.players.map(({ serving }) => serving.close()));
    rmSync(this.root, { recursive: true });
  }

  private call(
    { serving, active, canary }: Player,
    by: 'batchedRun' | 'run',
    named: boolean,
    ...others: number[]
  ): void {
    const version = named ? canary?.version.version : undefined;
    const shared = canary && canary.share > 0 ? [canary.mark] : [];
    const marks = version === undefined ? [active, ...shared, ...others] : [canary!.mark];
    const call = async (): Promise<string[]> => {
      const answer = await serving[by]('word', { version });
      const found = markOf(answer);
      return found !== undefined && marks.includes(found)
        ? []
        : [`${JSON.stringify(answer)} in place of an answer of ${marks.join(' or ')}`];
    };
    this.calls.push(call());
  }

  private async reload(
    player: Player,
    { place, canary, isBroken, calls }: ReloadStep,
  ): Promise<void> {
    const { serving } = player;
    if (canary !== undefined && player.canary) {
      return;
    }
    // A call whose session for run() still loads would read the files that we write now.
    await this.settled();
    const mark = ++this.mark;
    const whole = markedFiles(mark);
    const files = isBroken ? { ...whole, 'onnx/model.onnx': 'no model' } : whole;
    const isSame = place === 'same' && player.folder !== undefined;
    const folder =
      place === 'files' ? undefined : this.write(files, isSame ? player.folder : undefined);
    const model = isSame ? {} : { model: folder ?? { from: files } };
    const loading = serving.reload({ ...model, ...(canary !== undefined && { canary }) });
    const failed = loading.then(
      () => false,
      () => true,
    );
    for (let i = 0; i < calls; i++) {
      this.call(player, 'batchedRun', false, ...(isBroken ? [] : [mark]));
    }
    if ((await failed) !== isBroken) {
      this.calls.push(
        Promise.resolve([`the reload of ${mark} ${isBroken ? 'succeeded' : 'failed'}`]),
      );
      return;
    }
    if (isBroken) {
      return;
    }
    if (canary === undefined) {
      player.active = mark;
      player.folder = folder;
    } else {
      player.canary = { version: await loading, mark, share: canary, folder };
    }
  }

  private async settled(): Promise<void> {
    await Promise.all(this.calls);
  }

  private write(files: Readonly<Record<string, Uint8Array | string>>, into?: string): string {
    const folder = into ?? mkdtempSync(join(this.root, 'model-'));
    for (const [path, content] of Object.entries(files)) {
      mkdirSync(dirname(join(folder, path)), { recursive: true });
      writeFileSync(join(folder, path), content);
    }
    return folder;
  }
}
