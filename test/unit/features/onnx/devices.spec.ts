import { availableParallelism } from 'node:os';
import { afterEach, describe, expect, it } from '@jest/globals';
import type { InferenceSession } from 'onnxruntime-common';
import {
  createSession,
  partitionPerDevice,
  withShortSpin,
} from '../../../../lib/features/onnx/onnx-session.js';

const allButOneCore = Array.from({ length: Math.max(1, availableParallelism() - 1) }, () => ({}));

describe('partitionPerDevice', () => {
  const { CUDA_VISIBLE_DEVICES } = process.env;

  afterEach(() => {
    delete process.env['CUDA_VISIBLE_DEVICES'];
    Object.assign(process.env, CUDA_VISIBLE_DEVICES === undefined ? {} : { CUDA_VISIBLE_DEVICES });
  });

  it.each<[string, object, object[]]>([
    ['on the CPU, one for each core except one', {}, allButOneCore],
    ['on the CPU by name too', { executionProviders: ['cpu'] }, allButOneCore],
    [
      'on the CPU with options too',
      { executionProviders: [{ name: 'cpu', useArena: false }] },
      allButOneCore,
    ],
    ['on WebGPU, which offers one device', { executionProviders: ['webgpu', 'cpu'] }, [{}]],
    [
      'on CUDA, one for each visible device, with the options and fallbacks of the serving',
      { executionProviders: [{ name: 'cuda', gpuMemoryLimit: 9 }, 'cpu'] },
      [0, 1, 2].map((deviceId) => ({
        executionProviders: [{ name: 'cuda', gpuMemoryLimit: 9, deviceId }, 'cpu'],
      })),
    ],
    [
      'on TensorRT, one for each visible device',
      { executionProviders: ['tensorrt'] },
      [0, 1, 2].map((deviceId) => ({ executionProviders: [{ name: 'tensorrt', deviceId }] })),
    ],
  ])('[5.1] Automatic partitions are as many as the devices allow: %s', (_, session, expected) => {
    process.env['CUDA_VISIBLE_DEVICES'] = '4,5,7';

    expect(partitionPerDevice({ intraOpNumThreads: 2, ...session })).toEqual(expected);
  });

  it('[5.7] Without a visible CUDA device one partition is requested, whose load reports what is missing', () => {
    process.env['CUDA_VISIBLE_DEVICES'] = '';

    expect(partitionPerDevice({ executionProviders: ['cuda'] })).toEqual([
      { executionProviders: [{ name: 'cuda', deviceId: 0 }] },
    ]);
  });
});

describe('withShortSpin', () => {
  const short = { intra_op: { spin_duration_us: '20' } };

  it.each<[string, object, object]>([
    ['for a session without settings', {}, { session: short }],
    [
      'beside other settings',
      { session: { set_denormal_as_zero: '1' }, ep: { name: 'value' } },
      { session: { ...short, set_denormal_as_zero: '1' }, ep: { name: 'value' } },
    ],
    [
      'but not if the session has its own',
      { session: { intra_op: { allow_spinning: '0' } } },
      { session: { intra_op: { allow_spinning: '0' } } },
    ],
  ])('[5.9] Threads wait for a short time only %s', (_, extra, expected) => {
    const options = { intraOpNumThreads: 2, extra };
    expect(withShortSpin(options)).toEqual({ ...options, extra: expected });
  });

  it('[5.9] A name with dots overrides the time that threads wait', () => {
    const { extra } = withShortSpin({ extra: { 'session.intra_op.spin_duration_us': '5' } });
    // The runtime takes the last one.
    expect(Object.keys(extra!)).toEqual(['session', 'session.intra_op.spin_duration_us']);
  });
});

describe('createSession', () => {
  // The message of onnxruntime-node 1.30 on a machine with one GPU.
  const failure =
    '/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_call.cc:154 std::conditional_t<THRW, void, ' +
    'onnxruntime::common::Status> onnxruntime::CudaCall(ERRTYPE, const char*, int) [with ERRTYPE = cudaError; ' +
    'bool THRW = true] CUDA failure 101: invalid device ordinal ; GPU=0 ; hostname=vm ; ' +
    'file=/onnxruntime_src/onnxruntime/core/providers/cuda/cuda_execution_provider.cc ; line=352 ; ' +
    'expr=cudaSetDevice(info_.device_id);';

  /** Stands for a machine with a GPU, which opens sessions on the CPU alone. */
  const runtime = {
    offered: ['cpu', 'cuda'],
    complete: [],
    open: async (_: unknown, options: InferenceSession.SessionOptions = {}) => {
      const [provider] = options.executionProviders ?? [];
      if ((provider as { name: string } | undefined)?.name === 'cuda') {
        throw new Error(failure);
      }
      return { release: async () => {} };
    },
  };

  const open = (executionProviders: string[]) =>
    createSession(runtime, 'a.onnx', 'a.onnx', { executionProviders });

  it("[5.7] Errors give CUDA's reason without the names of C++ functions and files", async () => {
    await expect(open(['cuda'])).rejects.toThrow(
      'Cannot run the model a.onnx on cuda (CUDA failure 101: invalid device ordinal). CUDA needs',
    );
    expect((await open(['cuda', 'cpu'])).providers).toEqual({
      inUse: 'cpu',
      missing: ['cuda (CUDA failure 101: invalid device ordinal)'],
    });
  });
});
