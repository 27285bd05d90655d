import { isRecord } from '../../doors/options.js';

/** Call of a tool, as a model writes it. */
export interface ToolCall {
  /** Tool's name. */
  readonly name: string;
  /** Arguments, as the tool's schema describes them. */
  readonly arguments: Readonly<Record<string, unknown>>;
}

/** Texts around a call in a model's answer. */
export interface CallFrame {
  /** Text before the tool's name. */
  readonly begin: string;
  /** Text between the name and the arguments. */
  readonly middle: string;
  /** Text behind the arguments. */
  readonly end: string;
  /** Text between two calls; undefined if an answer has one at most. */
  readonly between: string | undefined;
}

interface ProbeCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: Readonly<Record<string, string>>;
}

const TEXT = 'text-of-the-probe';
/** Begins the calls' ids: some templates need nine letters and digits. */
const ID = 'probe000';
/** Characters that tell a turn's end, such as `</s>`, from the calls' own tags. */
const ENOUGH_OF_END = 4;
const CALLS: readonly [ProbeCall, ProbeCall] = [
  { id: `${ID}0`, name: 'first_probe', arguments: { one: 'first-value' } },
  { id: `${ID}1`, name: 'second_probe', arguments: { two: 'second-value' } },
];

/**
 * Reads from a chat template how its model writes calls of tools: a template lays out earlier
 * answers as the model wrote them. Undefined if it lays out none, or none with arguments in JSON.
 *
 * @param render lays out a conversation whose assistant wrote this text, or these calls
 */
export function callFrameOf(
  render: (answer: {
    readonly content: string;
    readonly toolCalls: readonly ProbeCall[];
  }) => string,
): CallFrame | undefined {
  const tried = (toolCalls: readonly ProbeCall[], content = ''): string => {
    try {
      return render({ content, toolCalls });
    } catch {
      return '';
    }
  };
  const [before, behind] = tried([], TEXT).split(TEXT);
  const one = placesIn(tried([CALLS[0]]), [CALLS[0]]);
  if (before === undefined || behind === undefined || !one) {
    return undefined;
  }
  const [beginning, middle, rest] = one as [string, string, string];
  const begin = beginning.slice(commonStart(before, beginning));
  // A turn ends alike behind a text and behind calls.
  const ending = rest.indexOf(behind.slice(0, ENOUGH_OF_END));
  const end = rest.slice(0, ending);
  if (begin === '' || ending < 0 || end.includes(ID)) {
    return undefined;
  }
  const [, , between = ''] = placesIn(tried(CALLS), CALLS) ?? [];
  const isRepeated =
    between.startsWith(end) &&
    between.endsWith(begin) &&
    between.length >= end.length + begin.length;
  return {
    begin,
    middle,
    end,
    between: isRepeated ? between.slice(end.length, between.length - begin.length) : undefined,
  };
}

/** Texts around and between the names and arguments of calls. */
function placesIn(text: string, calls: readonly ProbeCall[]): readonly string[] | undefined {
  const parts: string[] = [];
  let left = text;
  for (const { name, arguments: given } of calls) {
    const [[key, value]] = Object.entries(given) as [[string, string]];
    const written = new RegExp(`\\{\\s*"${key}"\\s*:\\s*"${value}"\\s*\\}`);
    for (const part of [name, written.exec(left)?.[0]]) {
      const place = part === undefined ? -1 : left.indexOf(part);
      if (part === undefined || place < 0) {
        return undefined;
      }
      parts.push(left.slice(0, place));
      left = left.slice(place + part.length);
    }
  }
  return [...parts, left];
}

function commonStart(one: string, other: string): number {
  let length = 0;
  while (length < one.length && one[length] === other[length]) {
    length++;
  }
  return length;
}

/** First text of a call, before spaces and braces, which tokens may join in different ways. */
export function triggerOf({ begin }: CallFrame): string {
  return /^[^\s{]+/.exec(begin)?.[0] ?? begin;
}

/** Takes calls out of an answer's text. */
export class CallReader {
  /** Text of a call, or of what may begin one. */
  private held = '';
  /** Blank text that may stand alone between calls. */
  private blank = '';
  private isWithinText = false;
  private calls: ToolCall[] = [];
  hasCalls = false;

  constructor(private readonly frame: CallFrame) {}

  /** Returns the text that is certain now, without calls. */
  push(more: string): string {
    const { begin } = this.frame;
    this.held += more;
    let text = '';
    for (;;) {
      const place = this.held.indexOf(begin);
      if (place < 0) {
        return text + this.release(this.held.length - longestStart(begin, this.held));
      }
      text += this.release(place);
      const call = this.callIn(this.held);
      if (!call) {
        return text;
      }
      this.hasCalls = true;
      this.isWithinText = false;
      this.blank = '';
      this.calls.push(call.call);
      this.held = this.held.slice(call.length);
    }
  }

  /** Rest of the text, with a call that the answer's end has cut. */
  end(): string {
    const text = this.release(this.held.length);
    return this.hasCalls ? text : this.blank + text;
  }

  get hasNewCalls(): boolean {
    return this.calls.length > 0;
  }

  /** Whole calls since the last time. */
  take(): readonly ToolCall[] {
    const { calls } = this;
    this.calls = [];
    return calls;
  }

  /** Blank text around calls is no text of the answer. */
  private release(length: number): string {
    const text = this.blank + this.held.slice(0, length);
    this.held = this.held.slice(length);
    const isShown = this.isWithinText || text.trim() !== '';
    this.isWithinText = isShown;
    this.blank = isShown ? '' : text;
    return isShown ? text : '';
  }

  /** Undefined until the call is whole. */
  private callIn(text: string): { readonly call: ToolCall; readonly length: number } | undefined {
    const { begin, middle, end } = this.frame;
    const behindName = text.indexOf(middle, begin.length);
    const start = behindName + middle.length;
    const length = behindName < 0 ? undefined : lengthOfObject(text, start);
    if (length === undefined || text.length < start + length + end.length) {
      return undefined;
    }
    const given: unknown = JSON.parse(text.slice(start, start + length));
    return {
      call: { name: text.slice(begin.length, behindName), arguments: isRecord(given) ? given : {} },
      length: start + length + end.length,
    };
  }
}

/** Length of the JSON object from a place on; undefined until it is whole. */
function lengthOfObject(text: string, start: number): number | undefined {
  let depth = 0;
  const part = /"(?:[^"\\]|\\.)*"|[{}]/gy;
  const skip = /[^"{}]*/y;
  for (let at = start; ;) {
    skip.lastIndex = at;
    skip.exec(text);
    part.lastIndex = skip.lastIndex;
    const [found] = part.exec(text) ?? [];
    if (found === undefined) {
      return undefined;
    }
    at = part.lastIndex;
    depth += found === '{' ? 1 : found === '}' ? -1 : 0;
    if (depth === 0) {
      return at - start;
    }
  }
}

/** Length of the text's longest end that begins the other. */
export function longestStart(other: string, text: string): number {
  let length = Math.min(other.length - 1, text.length);
  while (length > 0 && !other.startsWith(text.slice(text.length - length))) {
    length--;
  }
  return length;
}
