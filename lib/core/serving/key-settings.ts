import { checkTogether, combinationsOfKeys } from '../definition/combinations.js';
import { checkOptions, perKey } from '../definition/option-rules.js';
import type { KeyOptions, ResolvedServing } from '../definition/resolved-serving.js';
import { InvalidServingError } from '../errors.js';
import type { KeyStatus } from './serving.js';

/** Options by key, in all versions; they may change while the serving runs. */
export class KeySettings {
  private options: ResolvedServing['keys'];

  constructor(
    private readonly serving: ResolvedServing,
    private readonly apply: (keys: readonly string[], options: Partial<KeyOptions>) => void,
  ) {
    this.options = serving.keys;
  }

  get current(): ResolvedServing['keys'] {
    return this.options;
  }

  get status(): readonly KeyStatus[] {
    return [...this.options].map(([key, { batchSize, batchTimeout }]) => ({
      key,
      batchSize,
      batchTimeout,
    }));
  }

  /**
   * Changes these options of one key, or of all keys.
   *
   * @throws InvalidServingError for an invalid value or an unknown key
   */
  set(changes: Partial<Pick<KeyOptions, 'batchSize' | 'batchTimeout'>>, key?: string): void {
    const keys = this.keysOf(key);
    checkOptions(this.owner, changes, perKey);
    // Allowed sizes and targets are the same for all keys.
    const [any] = this.options.values();
    const facts = { ...any!, ...changes, queueRows: this.serving.queue.maxRows };
    checkTogether(this.owner, facts, combinationsOfKeys);
    const { batchSize } = changes;
    const options = batchSize === undefined ? changes : { ...changes, runSize: batchSize };
    const changed = keys.map((each) => [each, { ...this.options.get(each)!, ...options }] as const);
    this.options = new Map([...this.options, ...changed]);
    this.apply(keys, options);
  }

  private get owner(): string {
    return `Serving "${this.serving.name}"`;
  }

  private keysOf(key: string | undefined): readonly string[] {
    const keys = [...this.options.keys()];
    if (this.serving.sequence) {
      throw new InvalidServingError(
        `${this.owner} runs sequences: the number of its places is fixed when it starts, ` +
          'and its rows wait for no others; set batchSize in its definition',
      );
    }
    if (key !== undefined && !keys.includes(key)) {
      throw new InvalidServingError(
        `${this.owner} has no key "${key}"; its keys are ${keys.toSorted().join(', ')}`,
      );
    }
    return key === undefined ? keys : [key];
  }
}
