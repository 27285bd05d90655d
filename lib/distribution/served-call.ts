import { InvalidInputError, InvalidOutputError, messageOf } from '../errors.js';
import type { StreamOptions } from '../serving/call-options.js';
import { faultHeader } from './faults.js';
import { amountIn, type Header, textIn, textsIn, wholeIn } from './header.js';
import { Inbox } from './inbox.js';
import { eventsOf, type Offer, outputOf } from './offer.js';
import type { Letter, Post } from './post.js';
import type { Address } from './transport.js';
import { FrameError, Kind } from './wire/prelude.js';
import type { WireLimits } from './wire/limits.js';
import { encodeValue } from './wire/values.js';
import { Window, type WindowLimits } from './window.js';

/** One call of another node, while it is under way. */
export class ServedCall {
  private readonly left = new AbortController();
  private readonly window: Window;
  private readonly inputs: Inbox<unknown>;

  constructor(
    private readonly post: Post,
    private readonly from: Address,
    private readonly id: number,
    private readonly limits: WireLimits,
    window: WindowLimits,
  ) {
    this.window = new Window(window);
    this.inputs = new Inbox((taken) => void this.tell(Kind.inputCredit, { taken }));
  }

  /** Runs the call and says how it ended; resolves when that is said, and never rejects. */
  async serve(offer: Offer, { header, value }: Letter): Promise<void> {
    try {
      const method = textIn(header, 'method');
      const input = header['open'] === true ? this.openInput() : inputIn(value);
      const options = { ...optionsIn(header), signal: this.left.signal };
      if (method === 'stream') {
        await this.stream(eventsOf(offer, input, options));
      } else {
        await this.give(Kind.reply, {}, await outputOf(offer, method === 'run' ? 'run' : 'batchedRun', input, options));
      }
    } catch (error) {
      await this.tell(Kind.error, faultHeader(error));
    } finally {
      this.window.close();
    }
  }

  /** @throws FrameError when it makes no sense; the call has ended then */
  hear(letter: Letter): void {
    try {
      this.read(letter);
    } catch (error) {
      this.inputs.fail(new InvalidInputError(messageOf(error), { cause: error }));
      throw error;
    }
  }

  /** Its caller waits no more. */
  leave(): void {
    this.left.abort();
    this.window.close();
    this.inputs.fail(this.left.signal.reason);
  }

  private read({ kind, header, bytes, value }: Letter): void {
    switch (kind) {
      case Kind.credit:
        this.window.take(wholeIn(header, 'taken'));
        break;
      case Kind.cancel:
        this.leave();
        break;
      case Kind.input:
        this.inputs.push(wholeIn(header, 'index'), value(), bytes);
        break;
      case Kind.inputEnd:
        this.inputs.end(wholeIn(header, 'count'));
        break;
      default:
        throw new FrameError(`A frame of kind ${kind} is no part of a call`);
    }
  }

  /** The caller is asked for no more than is read of it. */
  private openInput(): AsyncIterable<unknown> {
    const { inputs } = this;
    // The first says that it is wanted at all, and the last that no more is.
    const tell = (header: { readonly taken?: number }): void => void this.tell(Kind.inputCredit, header);
    return {
      [Symbol.asyncIterator]: () => {
        tell({ taken: 0 });
        return {
          next: () => inputs.next(),
          return: () => {
            tell({});
            return Promise.resolve({ done: true, value: undefined });
          },
        };
      },
    };
  }

  /** The serving is asked for no more than the caller has room for. */
  private async stream(events: AsyncIterable<unknown>): Promise<void> {
    const { window } = this;
    for await (const event of events) {
      if (!(await window.room())) {
        return;
      }
      window.add(await this.give(Kind.chunk, { index: window.sent }, event));
    }
    await this.tell(Kind.end, { count: window.sent });
  }

  /**
   * Sends an output; gives the bytes that were sent.
   *
   * @throws InvalidOutputError when it cannot be sent
   */
  private async give(kind: Kind, header: object, output: unknown): Promise<number> {
    try {
      return await this.post.send(this.from, kind, { call: this.id, ...header }, encodeValue(output, this.limits));
    } catch (cause) {
      throw new InvalidOutputError(`The output cannot be sent to another node: ${messageOf(cause)}`, { cause });
    }
  }

  /** Nobody hears it where the caller has gone, and that is known elsewhere. */
  private async tell(kind: Kind, header: object): Promise<void> {
    if (!this.left.signal.aborted) {
      await this.post.send(this.from, kind, { call: this.id, ...header }).catch(() => {});
    }
  }
}

function inputIn(value: () => unknown): unknown {
  try {
    return value();
  } catch (cause) {
    throw new InvalidInputError(`The input cannot be read: ${messageOf(cause)}`, { cause });
  }
}

function optionsIn(header: Header): StreamOptions<string> {
  const hooks = textsIn(header, 'hooks');
  const timeout = amountIn(header, 'timeout');
  const priority = header['priority'] as number | undefined;
  const tenant = textIn(header, 'tenant');
  const origin = textIn(header, 'origin') ?? 'rpc';
  return { hooks: hooks ?? [], timeout, priority, tenant, origin, inline: header['inline'] === true };
}
