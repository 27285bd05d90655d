import type { InferenceSession } from 'onnxruntime-common';
import { ProviderUnavailableError, ServingLoadError } from '../errors.js';
import type { PartitionOptions } from './partition.js';

type Runtime = typeof import('onnxruntime-node');

/** An execution provider with its options. */
type Provider = { readonly name: string };

/** The execution providers that the options ask for, in their order. */
export function providersOf(options: PartitionOptions): readonly Provider[] {
  const providers = (options['executionProviders'] ?? []) as readonly (string | Provider)[];
  return providers.length === 0
    ? [{ name: 'cpu' }]
    : providers.map((provider) => (typeof provider === 'string' ? { name: provider } : provider));
}

/**
 * A session on all the providers asked for, or else on those of them that work on this machine.
 *
 * @throws ProviderUnavailableError when none works
 * @throws ServingLoadError when the model is at fault
 */
export async function createSession(
  { InferenceSession }: Runtime,
  model: string | Uint8Array,
  name: string,
  options: PartitionOptions,
): Promise<InferenceSession> {
  const create = (executionProviders: readonly Provider[]): Promise<InferenceSession> =>
    InferenceSession.create(model as string, { ...options, executionProviders } as InferenceSession.SessionOptions);
  const loadPlainly = () => InferenceSession.create(model as string).then(release, asError);
  const providers = providersOf(options);
  try {
    return await create(providers);
  } catch (reason) {
    const reasons = await Promise.all(providers.map((provider) => create([provider]).then(release, asError)));
    const usable = providers.filter((_, i) => reasons[i] === undefined);
    if (usable.length > 0 && usable.length < providers.length) {
      return create(usable);
    }
    // What even the CPU refuses is at fault itself: the model, or an option.
    const onCpu = providers.findIndex((provider) => provider.name === 'cpu');
    const fault = usable.length > 0 ? asError(reason) : onCpu >= 0 ? reasons[onCpu] : await loadPlainly();
    throw fault
      ? new ServingLoadError(`Cannot load the model ${name}: ${messageOf(fault)}`, { cause: fault })
      : unavailable(name, providers, reasons);
  }
}

function unavailable(model: string, providers: readonly Provider[], reasons: readonly (Error | undefined)[]): Error {
  const names = providers.map(({ name }) => name);
  return new ProviderUnavailableError(
    `Cannot run the model ${model} on ${names.map((name, i) => `${name} (${messageOf(reasons[i])})`).join(' or ')}. ` +
      `${names.map((name) => remedies[name] ?? `No build of onnxruntime-node for this platform offers "${name}".`).join(' ')} ` +
      `Or add a fallback: executionProviders: [${[...names, 'cpu'].map((name) => `'${name}'`).join(', ')}]`,
    { cause: reasons[0] },
  );
}

const cudaRemedy =
  'CUDA needs an NVIDIA driver, CUDA 12, cuDNN 9 and the CUDA libraries of onnxruntime-node (npm rebuild onnxruntime-node --onnxruntime-node-install=cuda12; Linux x64 only).';

const remedies: Readonly<Record<string, string>> = {
  cuda: cudaRemedy,
  tensorrt: `${cudaRemedy} TensorRT 10 must be installed beside it.`,
  webgpu: 'WebGPU needs a GPU with a Vulkan, Metal or Direct3D 12 driver.',
  dml: 'DirectML exists on Windows alone.',
  coreml: 'Core ML exists on macOS alone.',
};

async function release(session: InferenceSession): Promise<undefined> {
  await session.release();
  return undefined;
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error(String(reason));
}

function messageOf(error: Error | undefined): string {
  return error?.message.trim().replace(/\.$/, '') ?? '';
}
