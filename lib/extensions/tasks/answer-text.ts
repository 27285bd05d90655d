import { type CallFrame, CallReader, longestStart, type ToolCall } from './tool-calls.js';

/** Decodes tokens without special ones; no tokens are the empty text. */
export type Decode = (ids: readonly number[]) => string;

const INCOMPLETE = '\ufffd';

/**
 * Decodes the last tokens with and without each new one, since a character may need several tokens,
 * and some tokenizers write a token differently behind others. The difference is new text, unless
 * it ends within a character. So do text-generation-inference and vLLM.
 */
export class AnswerText {
  private readonly ids: number[] = [];
  /** Tokens between these were text before. */
  private start = 0;
  private read = 0;
  /** Text that may begin a stop string. */
  private held = '';
  hasStopped = false;
  private readonly reader: CallReader | undefined;

  /** @param frame of calls to take out of the text */
  constructor(
    private readonly decode: Decode,
    private readonly stops: readonly string[],
    frame?: CallFrame,
  ) {
    this.reader = frame && new CallReader(frame);
  }

  /** True once the model has called a tool. */
  get hasCalled(): boolean {
    return this.reader?.hasCalls === true;
  }

  /** True for calls that `takeCalls` returns. */
  get hasNewCalls(): boolean {
    return this.reader?.hasNewCalls === true;
  }

  /** Returns the text that is certain now. */
  push(id: number): string {
    const text = this.written(id);
    return this.reader ? this.reader.push(text) : text;
  }

  /** Rest of the text; an incomplete character becomes a replacement character. */
  end(): string {
    const text = this.rest();
    return this.reader ? this.reader.push(text) + this.reader.end() : text;
  }

  /** Whole calls since the last time. */
  takeCalls(): readonly ToolCall[] {
    return this.reader?.take() ?? [];
  }

  private written(id: number): string {
    const { ids } = this;
    ids.push(id);
    const before = this.decode(ids.slice(this.start, this.read));
    const now = this.decode(ids.slice(this.start));
    if (now.length <= before.length || now.endsWith(INCOMPLETE)) {
      return '';
    }
    this.start = this.read;
    this.read = ids.length;
    return this.release(now.slice(before.length));
  }

  private rest(): string {
    if (this.hasStopped) {
      return '';
    }
    const before = this.decode(this.ids.slice(this.start, this.read));
    const text = this.release(this.decode(this.ids.slice(this.start)).slice(before.length));
    return this.hasStopped ? text : text + this.held;
  }

  private release(more: string): string {
    const { stops } = this;
    if (stops.length === 0) {
      return more;
    }
    const text = this.held + more;
    const places = stops.map((stop) => text.indexOf(stop)).filter((place) => place >= 0);
    if (places.length > 0) {
      this.hasStopped = true;
      this.held = '';
      return text.slice(0, Math.min(...places));
    }
    const kept = Math.max(...stops.map((stop) => longestStart(stop, text)));
    this.held = text.slice(text.length - kept);
    return text.slice(0, text.length - kept);
  }
}
