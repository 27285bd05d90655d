/** The counters of a page. */
const PAGE = 4096;

/** A bit for each counter of a page that was seen. */
interface Page {
  readonly bits: Uint8Array;
  /** The time of the newest packet whose counter is in the page. */
  newest: number;
}

/**
 * Which counters of which senders were seen. Senders count up, so that what came in the last minutes is a few pages of bits: a bit
 * for each packet, where a list of random numbers would take a hundred bytes for each. After RFC 4303, 3.4.3, without a window:
 * packets of one sender may be late by any number of others.
 */
export class SeenCounters {
  private readonly senders = new Map<string, Map<number, Page>>();

  /** The pages that are kept. */
  get pages(): number {
    return [...this.senders.values()].reduce((sum, { size }) => sum + size, 0);
  }

  /** False when the counter of the sender was added before. */
  add(sender: string, counter: number, time: number): boolean {
    const page = this.pageOf(sender, Math.floor(counter / PAGE), time);
    const [byte, bit] = [(counter % PAGE) >> 3, 1 << (counter % 8)];
    if ((page.bits[byte]! & bit) !== 0) {
      return false;
    }
    page.bits[byte]! |= bit;
    page.newest = Math.max(page.newest, time);
    return true;
  }

  /** Forgets the pages of which everything came before: it is refused by its time. */
  forgetBefore(time: number): void {
    for (const [sender, pages] of this.senders) {
      for (const [number, { newest }] of pages) {
        if (newest < time) {
          pages.delete(number);
        }
      }
      if (pages.size === 0) {
        this.senders.delete(sender);
      }
    }
  }

  private pageOf(sender: string, number: number, time: number): Page {
    let pages = this.senders.get(sender);
    if (!pages) {
      pages = new Map();
      this.senders.set(sender, pages);
    }
    let page = pages.get(number);
    if (!page) {
      page = { bits: new Uint8Array(PAGE / 8), newest: time };
      pages.set(number, page);
    }
    return page;
  }
}
