import { describe, expect, it } from '@jest/globals';
import { observeWithOpenTelemetry } from 'nestjs-serving/opentelemetry';
import { LabelledVersions } from '../../fixtures/serving/labelled-versions.js';
import { useTelemetry } from '../../fixtures/serving/telemetry.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

describe('Versions in spans and metrics', () => {
  const telemetry = useTelemetry();
  const start = useServings();

  it('[17.6] Measurements and spans of the default version have no attribute for it, and those of others have', async () => {
    const serving = await start(new LabelledVersions().serving({ name: 'net' }));
    observeWithOpenTelemetry(serving, telemetry());

    await serving.batchedRun('a');
    await serving.reload();
    await serving.batchedRun('b');

    const measured = await telemetry().measured();
    for (const name of [
      'serving.call.duration',
      'serving.batch.size',
      'serving.batch.run.duration',
    ]) {
      const { points } = measured.get(name)!;
      expect(points.map(({ attributes }) => attributes['serving.version'])).toEqual([
        undefined,
        '2',
      ]);
      expect(Object.hasOwn(points[0]!.attributes, 'serving.version')).toBe(false);
    }
    for (const name of ['batchedRun net', 'batch net']) {
      const labels = telemetry()
        .named(name)
        .map(({ attributes }) => attributes['serving.version']);
      expect(labels).toEqual([undefined, '2']);
    }
  });
});
