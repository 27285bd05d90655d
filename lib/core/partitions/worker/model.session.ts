import { type OnnxModel, openModel } from '../onnx/onnx-model.js';
import { packTensors, unpackTensors } from './transfer.js';
import type {
  BatchEnd,
  FeedsRequest,
  Loaded,
  ModelTask,
  Listen,
  WorkerSession,
} from './worker-protocol.js';

/** An ONNX model in a worker. */
export class ModelSession implements WorkerSession {
  private constructor(private readonly model: OnnxModel) {}

  static async open(task: ModelTask): Promise<ModelSession> {
    return new ModelSession(await openModel(task));
  }

  get loaded(): Loaded {
    return this.model.loaded;
  }

  async run(
    { feeds, hooks, sessions }: FeedsRequest,
    listen: Listen,
  ): Promise<[BatchEnd, ArrayBuffer[]]> {
    const { model } = this;
    const tensors = unpackTensors(feeds, model.loaded.signature.inputs);
    const onHook = (name: string, value: unknown): void => listen(hooks, false).hook(name, value);
    const [reply, transfer] = packTensors(await model.run(tensors, hooks, onHook, sessions));
    return [{ reply }, transfer];
  }

  endSessions(ids: readonly number[]): void {
    this.model.endSessions(ids);
  }
}
