import type { Serving, ServingHealth } from '../../index.js';
import type { ClusterNode, ServingStatus } from '../../internal.js';
import type { Recorder } from './recorder.js';

/** Seconds over which the list's figures are means. */
const RECENT = 5;

export interface ListedServing extends Omit<ServingHealth, 'serving' | 'partitions'> {
  readonly name: string;
  readonly held?: Serving['held'];
  readonly partitions: { readonly up: number; readonly all: number };
  /** Calls that ended per second, and failed ones. */
  readonly calls: number;
  readonly failed: number;
  readonly rows: number;
  readonly rowsPerBatch: number;
}

type ListedNode = Pick<ClusterNode, 'id' | 'state' | 'isSelf'> & Omit<ServingStatus, 'signature'>;

export interface ViewQuery {
  /** Shown in detail. */
  readonly serving: string | undefined;
  /** The page's last second. */
  readonly since: number;
  /** The page's last batch. */
  readonly batch: number;
}

export interface ViewOptions {
  readonly recorder: Recorder;
  readonly servings: () => Iterable<readonly [string, Serving]>;
  readonly nodes: () => readonly ClusterNode[] | undefined;
  readonly allowsChanges: boolean;
  readonly seconds: number;
}

/** Viewers share the list, made once a second. */
export class View {
  private list: { readonly second: number; readonly text: string } | undefined;

  constructor(private readonly options: ViewOptions) {}

  json({ serving, since, batch }: ViewQuery): string {
    const { allowsChanges, recorder, seconds } = this.options;
    const { second, watchedSince } = recorder;
    const rest = {
      second,
      now: Date.now(),
      seconds,
      watchedSince,
      changes: allowsChanges,
      detail: this.detail(serving, since, batch),
    };
    return `{"servings":${this.listText()},${JSON.stringify(rest).slice(1)}`;
  }

  changed(): void {
    this.list = undefined;
  }

  private listText(): string {
    const { recorder, servings } = this.options;
    const { second } = recorder;
    if (this.list?.second !== second) {
      const all = [...servings()].map(([name, serving]) => this.listed(name, serving));
      this.list = { second, text: JSON.stringify(all) };
    }
    return this.list.text;
  }

  private listed(name: string, serving: Serving): ListedServing {
    const { serving: _, partitions, ...health } = serving.health();
    const history = this.options.recorder.historyOf(name);
    const mean = (figure: 'answered' | 'failed' | 'rows' | 'batches'): number =>
      history?.mean(figure, RECENT) ?? 0;
    const [failed, rows, batches] = [mean('failed'), mean('rows'), mean('batches')];
    return {
      name,
      ...health,
      held: serving.held,
      partitions: {
        up: partitions.filter(({ state }) => state === 'up').length,
        all: partitions.length,
      },
      calls: mean('answered') + failed,
      failed,
      rows,
      rowsPerBatch: batches === 0 ? 0 : rows / batches,
    };
  }

  private detail(name: string | undefined, since: number, batch: number): object | undefined {
    const { nodes, recorder, servings } = this.options;
    const serving = [...servings()].find(([each]) => each === name)?.[1];
    const history = name === undefined ? undefined : recorder.historyOf(name);
    if (name === undefined || !serving || !history) {
      return undefined;
    }
    return {
      name,
      counters: serving.counters(),
      keys: serving.keys(),
      targets: serving.targets(),
      partitions: serving.partitions(),
      versions: serving.versions(),
      nodes: nodes()?.flatMap((node) => listedNode(node, name)),
      from: history.firstAfter(since),
      figures: history.since(since),
      batches: recorder.batchesOf(name, batch),
    };
  }
}

function listedNode({ id, state, isSelf, servings }: ClusterNode, name: string): ListedNode[] {
  const status = servings.find((each) => each.name === name);
  if (!status) {
    return [];
  }
  const { signature: _, ...load } = status;
  return [{ id, state, isSelf, ...load }];
}
