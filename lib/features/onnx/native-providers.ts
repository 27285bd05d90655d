import type { MemoryOf } from '../../core/batch/tensor.js';
import { messageOf, ServingLoadError } from '../../core/errors.js';
import type { PartitionOptions } from '../../core/partitions/batch-function.js';
import { type NativeRuntime, type Pointer, pointers, textOf } from './native-runtime.js';
import { type Provider, providersOf, withoutPlaces } from './onnx-session.js';

/** The library's names of the providers that native sessions can use. */
const NAMES = { cpu: 'CPUExecutionProvider', cuda: 'CUDAExecutionProvider' } as const;

/** Providers that the library offers to native sessions. */
export function offeredBy(runtime: NativeRuntime): string[] {
  const offered = runtime.providers();
  return Object.entries(NAMES).flatMap(([name, its]) => (offered.includes(its) ? [name] : []));
}

/**
 * Adds the provider to a session's options. CUDA takes all of its options, such as `gpuMemLimit`
 * for `gpu_mem_limit`: https://onnxruntime.ai/docs/execution-providers/CUDA-ExecutionProvider.html
 *
 * @throws an Error with the library's message
 */
export function appendProvider(
  runtime: NativeRuntime,
  session: Pointer,
  { name, ...given }: Provider,
): void {
  if (name !== 'cuda') {
    return;
  }
  const keys = Object.keys(given).map(snakeCase);
  if (keys.includes('enable_cuda_graph')) {
    throw new ServingLoadError(
      'CUDA graphs need the same addresses in each run; leave the option enableCudaGraph out',
    );
  }
  const options = runtime.made('CreateCUDAProviderOptions');
  const names = keys.map(textOf);
  const values = Object.values(given).map((value) => textOf(String(value)));
  const addressesOf = (texts: readonly Uint8Array[]): BigUint64Array =>
    pointers(texts.map((text) => runtime.address(text)));
  try {
    const lists = [addressesOf(names), addressesOf(values)];
    try {
      runtime.call('UpdateCUDAProviderOptions', options, ...lists, names.length);
    } catch (cause) {
      throw optionError(cause);
    }
    runtime.call('SessionOptionsAppendExecutionProvider_CUDA_V2', session, options);
  } finally {
    runtime.call('ReleaseCUDAProviderOptions', options);
  }
}

/** A device may be missing on this machine; another fault is the definition's. */
function optionError(cause: unknown): unknown {
  const message = withoutPlaces(messageOf(cause));
  return /provider option(?!.*"device_id")/.test(message)
    ? new ServingLoadError(`The provider cuda: ${message}`, { cause })
    : cause;
}

/** Number of the GPU that a session with these options uses. */
export function deviceOf(options: PartitionOptions): number {
  const cuda = providersOf(options).find(({ name }) => name === 'cuda') ?? {};
  const { deviceId, device_id = deviceId } = cuda as { deviceId?: unknown; device_id?: unknown };
  return Number(device_id ?? 0);
}

function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/** Bytes. The driver copies less by itself, as quickly. */
const LARGE = 64 * 1024;

/** `OrtMemType`: memory of the host that the provider's device writes to. */
const CPU_OUTPUT = -1;

/**
 * Memory for a session's inputs which the GPU reads by itself. From other memory the driver copies
 * it first, but for small inputs, which are as quick. Outputs go to memory of the application's
 * own: callers keep them.
 */
export class PinnedMemory {
  private readonly info: Pointer;
  private readonly allocator: Pointer;
  private readonly blocks = new Map<ArrayBuffer, Pointer>();
  private free: ArrayBuffer[] = [];

  /** @param device the session's GPU */
  constructor(
    private readonly runtime: NativeRuntime,
    session: Pointer,
    device: number,
  ) {
    this.info = runtime.made('CreateMemoryInfo', 'CudaPinned', 0, device, CPU_OUTPUT);
    this.allocator = runtime.made('CreateAllocator', session, this.info);
  }

  /** May be larger; undefined for small memory, and if the machine has no more. */
  readonly memoryOf: MemoryOf = (bytes) => {
    if (bytes < LARGE) {
      return undefined;
    }
    const size = 2 ** Math.ceil(Math.log2(bytes));
    const at = this.free.findIndex(({ byteLength }) => byteLength === size);
    return at < 0 ? this.allocated(size) : this.free.splice(at, 1)[0];
  };

  /** Takes back what {@link memoryOf} gave, and no other memory. */
  keep(buffers: readonly ArrayBuffer[]): void {
    this.free.push(...buffers.filter((buffer) => this.blocks.has(buffer)));
  }

  release(): void {
    const { runtime, allocator } = this;
    this.blocks.forEach((block) => runtime.call('AllocatorFree', allocator, block));
    this.blocks.clear();
    this.free = [];
    runtime.call('ReleaseAllocator', allocator);
    runtime.call('ReleaseMemoryInfo', this.info);
  }

  private allocated(size: number): ArrayBuffer | undefined {
    let block: Pointer;
    try {
      block = this.runtime.made('AllocatorAlloc', this.allocator, size);
    } catch {
      return undefined;
    }
    const buffer = this.runtime.view(block, size);
    this.blocks.set(buffer, block);
    return buffer;
  }
}
