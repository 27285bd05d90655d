import type { InferenceSession } from 'onnxruntime-common';
import { isServingError, ProviderUnavailableError, ServingLoadError } from '../../core/errors.js';
import { closestName } from '../../core/format.js';
import type { SessionProviders } from '../../core/partitions/worker/worker-protocol.js';
import type { PartitionOptions } from '../../core/partitions/batch-function.js';
import { readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';

/** Opens sessions: onnxruntime-node, or its library's C API. */
export interface Runtime<Session> {
  /** Names of the providers that it was built with. */
  readonly offered: readonly string[];
  /** Names of the providers that get all their options. Others get those of {@link PASSED_ON}. */
  readonly complete: readonly string[];
  open(model: string | Uint8Array, options?: InferenceSession.SessionOptions): Promise<Session>;
}

/** An execution provider with its options. */
export interface Provider {
  readonly name: string;
}

export function providersOf(options: {
  readonly executionProviders?: unknown;
}): readonly Provider[] {
  const providers = (options.executionProviders ?? []) as readonly (string | Provider)[];
  return providers.length === 0
    ? [{ name: 'cpu' }]
    : providers.map((provider) => (typeof provider === 'string' ? { name: provider } : provider));
}

/** Options of providers that onnxruntime-node passes on. WebGPU's it checks by itself. */
const PASSED_ON: ReadonlyMap<string, readonly string[]> = new Map([
  ['cpu', []],
  ['cuda', ['deviceId']],
  ['tensorrt', ['deviceId']],
  ['dml', ['deviceId']],
  ['coreml', ['coreMlFlags']],
]);

/** Options of sessions that only the C API takes, or browsers. */
const NOT_PASSED_ON = ['freeDimensionOverrides', 'logVerbosityLevel', 'enableGraphCapture'];

/** @throws ServingLoadError naming an option of a session that onnxruntime-node would ignore */
export function refuseUnread(options: PartitionOptions): void {
  const unread = NOT_PASSED_ON.find((name) => options[name] !== undefined);
  if (unread !== undefined) {
    const remedy = unread === 'enableGraphCapture' ? '' : ", or use isolation: 'native'";
    throw new ServingLoadError(
      `onnxruntime-node would ignore the option ${unread} of the session; leave it out${remedy}`,
    );
  }
}

/** @throws ServingLoadError naming an option of a provider that would be ignored */
export function refuseIgnored(providers: readonly Provider[]): void {
  for (const { name, ...given } of providers) {
    const passedOn = PASSED_ON.get(name) ?? Object.keys(given);
    const ignored = Object.keys(given).find((option) => !passedOn.includes(option));
    if (ignored !== undefined) {
      const meant = closestName(ignored, passedOn);
      const other = name === 'cuda' ? ", or use isolation: 'native'" : '';
      const remedy = meant === undefined ? `leave it out${other}` : `did you mean ${meant}?`;
      throw new ServingLoadError(
        `onnxruntime-node would ignore the option ${ignored} of the provider ${name}; ${remedy}`,
      );
    }
  }
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

export interface OpenedSession<Session> {
  readonly session: Session;
  readonly providers: SessionProviders;
}

/**
 * Opens a session on all given providers, or on those that work here.
 *
 * @throws ProviderUnavailableError when no provider works
 * @throws ServingLoadError when the model or an option is at fault
 */
export async function createSession<Session extends Pick<InferenceSession, 'release'>>(
  runtime: Runtime<Session>,
  model: string | Uint8Array,
  name: string,
  options: PartitionOptions,
): Promise<OpenedSession<Session>> {
  const shared = withShortSpin(options);
  const create = (executionProviders: readonly Provider[]): Promise<Session> =>
    runtime.open(model, { ...shared, executionProviders });
  const createOn = async (
    usable: readonly Provider[],
    reasons: ReadonlyMap<Provider, Error>,
  ): Promise<OpenedSession<Session>> => {
    const missing = [...reasons].map(
      ([provider, reason]) => `${provider.name} (${messageOf(reason)})`,
    );
    return { session: await create(usable), providers: { inUse: usable[0]!.name, missing } };
  };
  const providers = providersOf(options);
  refuseIgnored(providers.filter((provider) => !runtime.complete.includes(provider.name)));
  // The runtime silently ignores unknown providers.
  const known = providers.filter(({ name: each }) => runtime.offered.includes(each));
  const reasons = new Map(
    providers
      .filter((each) => !known.includes(each))
      .map((each) => [each, notOffered(runtime.offered)]),
  );
  let failure: unknown;
  if (known.length > 0) {
    try {
      return await createOn(known, reasons);
    } catch (reason) {
      if (isServingError(reason)) {
        throw reason;
      }
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
        : await runtime.open(model).then(release, asError);
  if (!fault) {
    throw unavailable(name, providers, reasons);
  }
  throw loadError(name, fault);
}

export function loadError(model: string, cause: unknown): ServingLoadError {
  const message = messageOf(asError(cause));
  const hint = /protobuf|does not have a graph/i.test(message)
    ? '; it is not an ONNX file, or it is cut'
    : message.startsWith('Unsupported data type')
      ? ', of an input or output (16 is bfloat16); cast it in the model'
      : '';
  return new ServingLoadError(`Cannot load the model ${model}: ${message}${hint}`, { cause });
}

function notOffered(offered: readonly string[]): Error {
  return new Error(
    `onnxruntime-node does not offer it on ${process.platform} ${process.arch}; it offers ${offered.join(', ')}`,
  );
}

function unavailable(
  model: string,
  providers: readonly Provider[],
  reasons: ReadonlyMap<Provider, Error>,
): Error {
  const names = providers.map(({ name }) => name);
  const failures = providers.map((each) => `${each.name} (${messageOf(reasons.get(each))})`);
  const known = names.filter((name) => name in remedies);
  const cures = known.map((name) => ` ${remedies[name]}`);
  const fallback = [...known, 'cpu'].map((name) => `'${name}'`).join(', ');
  return new ProviderUnavailableError(
    `Cannot run the model ${model} on ${failures.join(' or ')}.${cures.join('')}` +
      (known.length > 0 ? ` Or add a fallback: executionProviders: [${fallback}]` : ''),
    { cause: reasons.get(providers[0]!) },
  );
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

async function release(session: Pick<InferenceSession, 'release'>): Promise<undefined> {
  await session.release();
  return undefined;
}

function asError(reason: unknown): Error {
  return reason instanceof Error ? reason : new Error(String(reason));
}

function messageOf(error: Error | undefined): string {
  const message = error?.message ?? '';
  // Found among names of C++ functions and files.
  const reason = /\w+ failure \d+: .+?(?= ; GPU=)/s.exec(message)?.[0];
  return reason ?? withoutPlaces(message);
}

/** Leaves out the C++ functions and files that an error came through. */
export function withoutPlaces(message: string): string {
  return message
    .replace(/^.* : FAIL : /s, '')
    .replaceAll(/ failed:(?=\/)/g, ': ')
    .replaceAll(/\S+\.(?:cc|h):\d+ (?:[^\s(]+\([^)]*\)|\S+) /g, '')
    .trim()
    .replace(/\.$/, '');
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
