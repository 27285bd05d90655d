/** Microseconds of CPU time. */
export interface Costs {
  /** Of a web process, for a request. */
  readonly web: number;
  /** Of the main thread of a model process, for a row. */
  readonly model: number;
  /** Of a model process beside its main thread, for a row: its partition. */
  readonly partition: number;
}

export interface Capacity {
  readonly webs: number;
  readonly models: number;
  /** Requests a second. */
  readonly rate: number;
}

/**
 * The best division of the cores: as many model processes as the rows need, and a web process on
 * each core that is left. An event loop has one core, and so has a partition.
 */
export function capacityOf({ web, model, partition }: Costs, cores: number): Capacity {
  const perModelProcess = 1e6 / Math.max(model, partition);
  const coresOfModel = (model + partition) / Math.max(model, partition);
  let best: Capacity = { webs: 0, models: 0, rate: 0 };
  for (let models = 1; models < cores; models++) {
    const webs = Math.floor(cores - models * coresOfModel);
    const rate = Math.min((webs * 1e6) / web, models * perModelProcess);
    if (rate > best.rate) {
      best = { webs, models, rate };
    }
  }
  return best;
}
