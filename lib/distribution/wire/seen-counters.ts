/** The counters of a page. */
const PAGE = 4096;

/** Senders that are remembered. A sender is one start of a node that has the secret. */
const MOST_SENDERS = 2 ** 16;

/** A bit for each counter of a page that was seen. */
interface Page {
  readonly bits: Uint8Array;
  /** The largest of them. */
  largest: number;
  /** When the last packet of the page came. */
  heardAt: number;
}

/** What has come of one sender. */
interface Sender {
  readonly pages: Map<number, Page>;
  /** Counters below this one are refused: their pages are forgotten. */
  floor: number;
}

/**
 * Which counters of which senders were seen. Senders count up, so the counters of the last minutes
 * are a few pages of bits. After RFC 4303, 3.4.3, with the difference that packets may be late by
 * any number of others, as long as their page is kept.
 *
 * All times are those of a clock that is never set, and have no part in the decision whether a
 * counter is new: of a page that is forgotten its largest counter stays.
 */
export class SeenCounters {
  private readonly senders = new Map<string, Sender>();

  /** The pages that are kept. */
  get pages(): number {
    return [...this.senders.values()].reduce((sum, { pages }) => sum + pages.size, 0);
  }

  /** False when the counter of the sender was added before, or may have been. */
  add(sender: string, counter: number, now: number): boolean {
    const { pages, floor } = this.senderOf(sender);
    if (counter < floor) {
      return false;
    }
    const page = pageOf(pages, Math.floor(counter / PAGE));
    const [byte, bit] = [(counter % PAGE) >> 3, 1 << (counter % 8)];
    if ((page.bits[byte]! & bit) !== 0) {
      return false;
    }
    page.bits[byte]! |= bit;
    page.largest = Math.max(page.largest, counter);
    page.heardAt = now;
    return true;
  }

  /** Forgets the pages of which nothing has come since then. */
  forgetBefore(time: number): void {
    for (const sender of this.senders.values()) {
      for (const [number, { heardAt, largest }] of sender.pages) {
        if (heardAt < time) {
          sender.pages.delete(number);
          sender.floor = Math.max(sender.floor, largest + 1);
        }
      }
    }
  }

  private senderOf(name: string): Sender {
    let sender = this.senders.get(name);
    if (!sender) {
      this.makeRoom();
      sender = { pages: new Map(), floor: 0 };
      this.senders.set(name, sender);
    }
    return sender;
  }

  /** Forgets the oldest sender of which nothing has come for long. */
  private makeRoom(): void {
    if (this.senders.size < MOST_SENDERS) {
      return;
    }
    for (const [name, { pages }] of this.senders) {
      if (pages.size === 0) {
        this.senders.delete(name);
        return;
      }
    }
  }
}

function pageOf(pages: Map<number, Page>, number: number): Page {
  let page = pages.get(number);
  if (!page) {
    page = { bits: new Uint8Array(PAGE / 8), largest: 0, heardAt: 0 };
    pages.set(number, page);
  }
  return page;
}
