import { describe, expect, it } from '@jest/globals';
import { Tensor, UnknownServingError } from 'nestjs-serving';
import { Inference } from '../../../lib/extensions/inference-protocol/server/inference.js';
import { metadataOf } from '../../../lib/extensions/inference-protocol/server/inference-server.js';
import { StatisticsOfModel } from '../../../lib/extensions/inference-protocol/server/statistics.js';
import { useVirtualTime } from '../../fixtures/async/virtual-time.js';
import { modelsOf, requestOf } from '../../fixtures/serving/inference-core.js';
import { LabelledVersions } from '../../fixtures/serving/labelled-versions.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

describe('A model with versions', () => {
  const start = useServings();
  useVirtualTime();

  const open = async () => {
    const serving = new LabelledVersions().serving({ name: 'net' });
    await start(serving);
    const models = modelsOf([serving]);
    const inference = new Inference(models, 1000);
    const infer = async (version?: string): Promise<{ version: string; text: unknown }> => {
      const input = new Tensor('string', ['"a"'], [1]);
      const reply = await inference.infer({ ...requestOf('net', { input }), version }, {});
      return { version: reply.version, text: reply.outputs.get('output')!.data[0] };
    };
    return { serving, models, model: models.find('net'), infer };
  };

  it('[18.20] A request runs on the version that it names, others on the active one', async () => {
    const { serving, models, model, infer } = await open();
    const canary = await serving.reload({ canary: 0 });

    expect(metadataOf(model).versions).toEqual(['2', '1']);
    expect(await infer()).toEqual({ version: '1', text: '"1:a"' });
    expect(await infer('2')).toEqual({ version: '2', text: '"2:a"' });

    await canary.promote();
    expect(metadataOf(model).versions).toEqual(['2']);
    expect(await infer()).toEqual({ version: '2', text: '"2:a"' });
    await expect(infer('1')).rejects.toThrow(UnknownServingError);
    expect(() => models.find('net', '1')).toThrow('has no version "1"; it has 2');
  });

  it('[P6] The reply of a request that names no version names the one that ran it, also a canary', async () => {
    const { serving, infer } = await open();
    await serving.reload({ canary: 0.5 });

    const replies = await Promise.all(Array.from({ length: 100 }, () => infer()));

    for (const { version, text } of replies) {
      expect(text).toBe(`"${version}:a"`);
    }
    expect(new Set(replies.map(({ version }) => version))).toEqual(new Set(['1', '2']));
  });

  it('[18.20] Each version has statistics of its own', async () => {
    const { serving, model, infer } = await open();
    const statistics = new StatisticsOfModel();
    const subscription = statistics.observe(model);
    const canary = await serving.reload({ canary: 0 });
    const counts = (version?: string) =>
      statistics.of(model, version).map((each) => [each.version, each.inference_count]);

    await infer();
    await infer('2');
    await infer('2');

    expect(counts()).toEqual([
      ['2', 2],
      ['1', 1],
    ]);
    expect(counts('1')).toEqual([['1', 1]]);
    await canary.promote();
    expect(counts()).toEqual([['2', 2]]);
    subscription?.unsubscribe();
  });
});
