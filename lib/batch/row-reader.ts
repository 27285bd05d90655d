import { Batch } from './batch.js';
import type { FlatContainer } from './container.js';
import type { BatchAxes, Template } from './template.js';

/**
 * Makes batches of containers with rows on these axes. Remembers the template of the last one: most
 * often that of the next.
 */
export class RowReader {
  private last: Template | undefined;

  constructor(private readonly axes?: BatchAxes) {}

  read(container: FlatContainer): Batch {
    const batch = Batch.ofContainer(container, this.axes, this.last);
    this.last = batch.template;
    return batch;
  }
}
