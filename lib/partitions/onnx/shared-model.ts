import type { OnnxModel } from './onnx-model.js';

/** One loaded model for several users: opens for the first of them, and closes after the last. */
export class SharedModel {
  private opened: Promise<OnnxModel> | undefined;
  private users = 0;

  /** `open` is only called when the model is not open. */
  async acquire(open: () => Promise<OnnxModel>): Promise<OnnxModel> {
    this.users++;
    const opened = (this.opened ??= open());
    try {
      return await opened;
    } catch (error) {
      this.users--;
      // The next user opens it again.
      this.opened = this.opened === opened ? undefined : this.opened;
      throw error;
    }
  }

  async release(): Promise<void> {
    const { opened } = this;
    if (--this.users === 0 && opened) {
      this.opened = undefined;
      await (await opened).close();
    }
  }
}
