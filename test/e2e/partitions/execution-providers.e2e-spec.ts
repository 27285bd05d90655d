import type { InferenceSession } from 'onnxruntime-common';
import { describe, expect, it, jest } from '@jest/globals';
import { ProviderUnavailableError, ServingLoadError } from 'nestjs-serving';
import { recordWarnings } from '../../fixtures/recorded-warnings.js';
import { echoModel, value } from '../../fixtures/models/models.js';
import { floats } from '../../fixtures/values/tensors.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

const model = echoModel({ x: value('float32', 'batch') });
const x = floats([1], [7]);

/** A provider that exists nowhere stands for all missing ones. */
const missing = 'abacus';

describe('The execution providers of a serving', () => {
  const serve = useServings();

  it.each<[string, unknown[], RegExp]>([
    [
      'cuda',
      [{ name: 'cuda', deviceId: 99 }],
      /on cuda \(.+\)\. CUDA needs an NVIDIA driver.+ executionProviders: \['cuda', 'cpu'\]$/,
    ],
    [
      'tensorrt',
      ['tensorrt'],
      /on tensorrt \(.+\)\. .+TensorRT 10 is needed too.+ executionProviders: \['tensorrt', 'cpu'\]$/,
    ],
    [
      missing,
      [missing],
      /on abacus \(onnxruntime-node does not offer it on .+; it offers cpu, .+\)\.$/,
    ],
    [
      'each of several',
      [missing, 'slide-rule'],
      /on abacus \(.+\) or slide-rule \(.+; it offers cpu, .+\)\.$/,
    ],
  ])(
    '[5.7] A missing provider fails the boot with the reason and what to install: %s',
    async (_, executionProviders, message) => {
      const starting = serve({ name: 'echo', model, partitions: [{ executionProviders }] });

      await expect(starting).rejects.toThrow(ProviderUnavailableError);
      await expect(starting).rejects.toThrow(/^Serving "echo": Cannot run the model of \d+ bytes /);
      await expect(starting).rejects.toThrow(message);
      await expect(starting).rejects.toMatchObject({ cause: expect.anything() });
    },
  );

  it.each<[string, InferenceSession.ExecutionProviderConfig[]]>([
    ['by name', [missing, 'cpu']],
    ['with options', [{ name: 'cuda', deviceId: 99 }, { name: 'cpu' }]],
    ['after two that are missing', [missing, 'cuda', 'cpu']],
    ['around one that is missing', ['cpu', 'cuda']],
  ])(
    '[5.7] A missing provider falls back to others in the list: %s',
    async (_, executionProviders) => {
      const serving = await serve({
        name: 'echo',
        model: { file: model, session: { executionProviders } },
      });

      expect(await serving.batchedRun({ x })).toEqual({ same_x: x });
    },
  );

  it.each<[string, InferenceSession.ExecutionProviderConfig[], RegExp[]]>([
    [
      'unknown',
      [missing, 'cpu'],
      [
        /^The model of serving "echo" runs on cpu, without abacus \(.+ does not offer it on .+; it offers cpu, /,
      ],
    ],
    [
      'known and not available',
      ['tensorrt', 'cpu'],
      [/^The model of serving "echo" runs on cpu, without tensorrt \(.+\)$/],
    ],
    [
      'two of these, one after the CPU',
      [missing, 'cpu', { name: 'cuda', deviceId: 99 }],
      [/ without abacus /, / without cuda /],
    ],
  ])(
    '[W10] A missing provider is named in a warning, and partitions() names the one in use: %s',
    async (_, executionProviders, warnings) => {
      const recorded = recordWarnings();

      const serving = await serve({
        name: 'echo',
        model: { file: model, session: { executionProviders } },
        partitions: 2,
      });
      jest.restoreAllMocks();

      expect(recorded).toEqual(warnings.map((warning) => expect.stringMatching(warning)));
      const up = { state: 'up', restarts: 0, provider: 'cpu' };
      expect(serving.partitions()).toEqual([up, up]);
    },
  );

  it.each<[string, object, RegExp]>([
    [
      'of the CPU',
      { name: 'cpu', useArena: false },
      /: onnxruntime-node would ignore the option useArena of the provider cpu; leave it out$/,
    ],
    [
      'of CUDA, by its name in C',
      { name: 'cuda', device_id: 1 },
      / the option device_id of the provider cuda; did you mean deviceId\?$/,
    ],
    [
      'of CUDA, in a thread',
      { name: 'cuda', deviceId: 0, gpuMemLimit: 2 ** 30 },
      / the option gpuMemLimit of the provider cuda; leave it out, or use isolation: 'native'$/,
    ],
  ])(
    '[24.12] An option that would be ignored fails the start: %s',
    async (_, provider, message) => {
      const executionProviders = [provider as { name: string }, 'cpu'];
      const starting = serve({
        name: 'echo',
        model: { file: model, session: { executionProviders } },
      });

      await expect(starting).rejects.toThrow(ServingLoadError);
      await expect(starting).rejects.toThrow(message);
    },
  );

  it.each<[object, string]>([
    [{ freeDimensionOverrides: { n: 1 } }, "leave it out, or use isolation: 'native'"],
    [{ logVerbosityLevel: 1 }, "leave it out, or use isolation: 'native'"],
    [{ enableGraphCapture: true }, 'of the session; leave it out'],
  ])(
    '[24.12] An option of the session that would be ignored fails the start: %j',
    async (session, message) => {
      for (const isolation of ['thread', 'none'] as const) {
        const starting = serve({ name: 'echo', model: { file: model, session, isolation } });
        await expect(starting).rejects.toThrow(
          `onnxruntime-node would ignore the option ${Object.keys(session)[0]} of the session`,
        );
        await expect(starting).rejects.toThrow(message);
      }
    },
  );

  it('[5.7] An empty list of providers means the CPU', async () => {
    const serving = await serve({
      name: 'echo',
      model: { file: model, session: { executionProviders: [] } },
    });

    expect(await serving.batchedRun({ x })).toEqual({ same_x: x });
  });

  it('[5.7] The error for a faulty model does not blame the providers', async () => {
    const starting = serve({
      name: 'echo',
      model: { file: Uint8Array.of(1, 2, 3), session: { executionProviders: [missing] } },
    });

    await expect(starting).rejects.toThrow(ServingLoadError);
    await expect(starting).rejects.not.toThrow(missing);
  });

  it('[5.7] A missing provider is reported also when an option forbids the CPU', async () => {
    const session = {
      executionProviders: [missing],
      extra: { session: { disable_cpu_ep_fallback: '1' } },
    };

    await expect(serve({ name: 'echo', model: { file: model, session } })).rejects.toThrow(
      ProviderUnavailableError,
    );
  });
});
