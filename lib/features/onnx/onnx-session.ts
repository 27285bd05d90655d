import type { InferenceSession, InferenceSessionFactory } from 'onnxruntime-common';
import { ProviderUnavailableError, ServingLoadError } from '../../core/errors.js';
import type { SessionProviders } from '../../core/partitions/worker/worker-protocol.js';
import type { PartitionOptions } from '../../core/partitions/batch-function.js';
import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';

/** Types of onnxruntime-node, which need not be installed. */
interface Runtime {
  readonly InferenceSession: InferenceSessionFactory;
  readonly listSupportedBackends: () => readonly Provider[];
}

type Provider = { readonly name: string };

export function providersOf(options: PartitionOptions): readonly Provider[] {
  const providers = (options['executionProviders'] ?? []) as readonly (string | Provider)[];
  return providers.length === 0
    ? [{ name: 'cpu' }]
    : providers.map((provider) => (typeof provider === 'string' ? { name: provider } : provider));
}

/**
 * A session's threads busy-wait for its next operation, by default for tens of milliseconds after a
 * run. 20 µs outlast the gaps within one.
 */
export function withShortSpin(options: PartitionOptions): InferenceSession.SessionOptions {
  const { session, ...others } = { ...(options['extra'] as { session?: object }) };
  const intra_op = { spin_duration_us: '20' };
  // Ours comes first: a name with dots overrides it.
  return { ...options, extra: { session: { intra_op, ...session }, ...others } };
}

interface OpenedSession {
  readonly session: InferenceSession;
  readonly providers: SessionProviders;
}

/**
 * Opens a session on all given providers, or on those that work here.
 *
 * @throws ProviderUnavailableError when no provider works
 * @throws ServingLoadError when the model or an option is at fault
 */
export async function createSession(
  { InferenceSession, listSupportedBackends }: Runtime,
  model: string | Uint8Array,
  name: string,
  options: PartitionOptions,
): Promise<OpenedSession> {
  const shared = withShortSpin(options);
  const create = (executionProviders: readonly Provider[]): Promise<InferenceSession> =>
    InferenceSession.create(model as string, { ...shared, executionProviders });
  const createOn = async (
    usable: readonly Provider[],
    reasons: ReadonlyMap<Provider, Error>,
  ): Promise<OpenedSession> => {
    const missing = [...reasons].map(
      ([provider, reason]) => `${provider.name} (${messageOf(reason)})`,
    );
    return { session: await create(usable), providers: { inUse: usable[0]!.name, missing } };
  };
  const providers = providersOf(options);
  // The runtime silently ignores unknown providers.
  const offered = new Set(listSupportedBackends().map((backend) => backend.name));
  const known = providers.filter((provider) => offered.has(provider.name));
  const reasons = new Map(
    providers.filter((each) => !known.includes(each)).map((each) => [each, notOffered()]),
  );
  let failure: unknown;
  if (known.length > 0) {
    try {
      return await createOn(known, reasons);
    } catch (reason) {
      failure = reason;
    }
  }
  for (const provider of known) {
    const reason = await create([provider]).then(release, asError);
    if (reason) {
      reasons.set(provider, reason);
    }
  }
  const usable = known.filter((provider) => !reasons.has(provider));
  if (usable.length > 0 && usable.length < known.length) {
    return createOn(usable, reasons);
  }
  const cpu = known.find((provider) => provider.name === 'cpu');
  // If the CPU fails too, the model or an option is at fault.
  const fault =
    usable.length > 0
      ? asError(failure)
      : cpu
        ? reasons.get(cpu)
        : await InferenceSession.create(model as string).then(release, asError);
  if (!fault) {
    throw unavailable(name, providers, reasons);
  }
  throw loadError(name, fault);
}

export function loadError(model: string, cause: unknown): ServingLoadError {
  const message = messageOf(asError(cause));
  const hint = /protobuf/i.test(message) ? '; it is not an ONNX file, or it is cut' : '';
  return new ServingLoadError(`Cannot load the model ${model}: ${message}${hint}`, { cause });
}

function notOffered(): Error {
  return new Error(`onnxruntime-node does not offer it on ${process.platform} ${process.arch}`);
}

function unavailable(
  model: string,
  providers: readonly Provider[],
  reasons: ReadonlyMap<Provider, Error>,
): Error {
  const names = providers.map(({ name }) => name);
  const failures = providers.map((each) => `${each.name} (${messageOf(reasons.get(each))})`);
  const cures = names.map((name) => remedies[name] ?? notBuilt(name));
  const fallback = [...names, 'cpu'].map((name) => `'${name}'`).join(', ');
  return new ProviderUnavailableError(
    `Cannot run the model ${model} on ${failures.join(' or ')}. ${cures.join(' ')} ` +
      `Or add a fallback: executionProviders: [${fallback}]`,
    { cause: reasons.get(providers[0]!) },
  );
}

function notBuilt(name: string): string {
  return `No build of onnxruntime-node for this platform offers "${name}".`;
}

const cudaRemedy =
  'CUDA needs an NVIDIA driver, CUDA 12, cuDNN 9 and the CUDA libraries of onnxruntime-node (npm ' +
  'rebuild onnxruntime-node --onnxruntime-node-install=cuda12; Linux x64 only).';

const remedies: Readonly<Record<string, string>> = {
  cuda: cudaRemedy,
  tensorrt: `${cudaRemedy} TensorRT 10 is needed too.`,
  webgpu: 'WebGPU needs a GPU with a Vulkan, Metal or Direct3D 12 driver.',
  dml: 'DirectML exists only on Windows.',
  coreml: 'Core ML exists only on macOS.',
};

async function release(session: InferenceSession): Promise<undefined> {
  await session.release();
  return undefined;
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error(String(reason));
}

function messageOf(error: Error | undefined): string {
  const message = error?.message.trim().replace(/\.$/, '') ?? '';
  // Found among names of C++ functions and files.
  return /\w+ failure \d+: .+?(?= ; GPU=)/s.exec(message)?.[0] ?? message;
}

/** One partition per device of the first execution provider, for `partitions: true`. */
export function partitionPerDevice(session: PartitionOptions): PartitionOptions[] {
  const [provider] = providersOf(session);
  const [, ...fallbacks] = (session['executionProviders'] ?? []) as readonly unknown[];
  switch (provider!.name) {
    case 'cpu':
      return Array.from({ length: Math.max(1, availableParallelism() - 1) }, () => ({}));
    case 'cuda':
    case 'tensorrt':
      return Array.from({ length: Math.max(1, countNvidiaDevices()) }, (_, deviceId) => ({
        executionProviders: [{ ...provider, deviceId }, ...fallbacks],
      }));
    default:
      // Other providers offer one device: the system's default.
      return [{}];
  }
}

/** Returns 0 without a driver, which the session reports when it opens. */
function countNvidiaDevices(): number {
  const visible = process.env['CUDA_VISIBLE_DEVICES'];
  if (visible !== undefined) {
    return visible.split(',').filter(Boolean).length;
  }
  try {
    return readdirSync('/proc/driver/nvidia/gpus').length;
  } catch {
    return 0;
  }
}
