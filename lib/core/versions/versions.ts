import { Subject } from 'rxjs';
import type { CallOptions } from '../context/call-context.js';
import type { Callbacks } from '../definition/resolved-serving.js';
import { InvalidServingError, messageOf, ServingClosedError, ServingLoadError } from '../errors.js';
import { share as shareRule } from '../definition/option-rules.js';
import { formatValue } from '../format.js';
import { log } from '../log.js';
import type { LoadedVersion } from './loaded-version.js';
import type { VersionRole, VersionStatus } from './serving-version.js';
import type { VersionPolicy } from './version-policy.js';
import type { Closable, Rung } from '../execution/shutdown.js';

/** Sums of shares such as 0.1 and 0.2 are not exact. */
const ROUNDING = 1e-9;

/** A serving's loaded versions: which of them runs a call, and how one replaces another. */
export class Versions implements Closable {
  private readonly all = new Set<LoadedVersion>();
  /** The versions that may take calls from the active one. */
  private takers: readonly LoadedVersion[] = [];
  /** Sees the active version's calls. */
  witness: LoadedVersion | undefined;
  /** Runs every call that names no version; undefined if we refuse calls or must choose. */
  only: LoadedVersion | undefined;
  /** Emits when other versions may run calls, or none. */
  readonly chosen$ = new Subject<void>();
  private isRefusing = false;
  private isEnding = false;

  constructor(
    private readonly callbacks: Callbacks,
    /** The default version: runs every call not routed to another. */
    public active: LoadedVersion,
  ) {
    this.all.add(active);
    active.role = 'active';
    this.only = active;
  }

  refuse(isRefusing: boolean): void {
    this.isRefusing = isRefusing;
    this.choose();
  }

  /** Undefined if no version has the label that the call names, or we refuse calls. */
  for(input: unknown, options: CallOptions): LoadedVersion | undefined {
    const { version } = options;
    if (this.isRefusing) {
      return undefined;
    }
    if (version !== undefined) {
      return this.callable.find(({ label }) => label === version);
    }
    let left = 1;
    for (const taker of this.takers) {
      if (taker.place!.takes!(input, options, left)) {
        return taker.isUp ? taker : this.active;
      }
      left -= taker.share;
    }
    return this.active;
  }

  get labels(): readonly string[] {
    return this.callable.map(({ label }) => label);
  }

  find(version: string): LoadedVersion | undefined {
    return [...this.all].find(({ label, role }) => label === version && role !== 'draining');
  }

  get status(): readonly VersionStatus[] {
    return [...this.all].map(({ status }) => status);
  }

  get queued(): number {
    const own = [...this.all].filter(({ isHidden }) => !isHidden);
    return own.reduce((rows, { queued }) => rows + queued, 0);
  }

  [Symbol.iterator](): Iterator<LoadedVersion> {
    return this.all[Symbol.iterator]();
  }

  /**
   * The loaded version gets no calls yet.
   *
   * @param limit milliseconds until it must be loaded and warm
   * @throws what its load throws; it has then been freed
   * @throws ServingLoadError at the limit; it is then freed when what loads has ended
   */
  async load(version: LoadedVersion, limit = Infinity): Promise<void> {
    this.all.add(version);
    let isLate = false;
    const timer =
      limit < Infinity &&
      setTimeout(() => {
        isLate = true;
        version.stop(
          'end',
          new ServingLoadError(
            `Serving "${this.callbacks.name}": version "${version.label}" was not ready ${limit} ms ` +
              'after its reload; raise recovery.restartTimeout if that may take so long',
          ),
        );
      }, limit);
    try {
      await version.open();
      if (this.isEnding) {
        throw closedWhileLoading(this.callbacks.name);
      }
    } catch (error) {
      // Its label is free from now on.
      version.role = 'draining';
      const freed = version.close().then(() => this.remove(version));
      if (isLate) {
        // A run in native code may never end, and must not hold up a later reload.
        freed.catch(() => {});
      } else {
        await freed;
      }
      throw error;
    } finally {
      clearTimeout(timer || undefined);
    }
  }

  /** Gives the version its share of the calls. */
  place(version: LoadedVersion, role: VersionRole, policy: VersionPolicy, share: number): void {
    version.role = role;
    version.share = share;
    version.place = policy.placeOf(version, this.callbacks);
    this.choose();
  }

  /** @throws InvalidServingError unless it has a share, and `value` is one */
  setShare(version: LoadedVersion, value: number | undefined): void {
    const { name } = this.callbacks;
    const owner = `Serving "${name}", version "${version.label}"`;
    if (version.currentShare === undefined) {
      throw new InvalidServingError(
        `${owner}: it is ${version.role}, and has no share of the calls that could change`,
      );
    }
    if (!shareRule.check(value)) {
      throw new InvalidServingError(
        `${owner}: share is ${formatValue(value)}; allowed is ${shareRule.allowed}`,
      );
    }
    if (version.place?.takes) {
      this.checkShares(version.label, value as number);
    }
    version.share = value as number;
    this.choose();
  }

  /** @throws InvalidServingError if versions would take more than all calls */
  checkShares(label: string, share: number): void {
    const others = this.takers.filter((each) => each.label !== label);
    const taken = others.reduce((sum, each) => sum + each.share, 0);
    if (taken + share > 1 + ROUNDING) {
      throw new InvalidServingError(
        `Serving "${this.callbacks.name}": version "${label}" cannot get ${share} of the calls, since ` +
          `${others.map((each) => `version "${each.label}" gets ${each.share}`).join(' and ')}; ` +
          'shares of canaries are 1 together at most, so lower one of them first',
      );
    }
  }

  /**
   * Gives the version all calls from now on. The one before ends with its calls; the version's own
   * calls end first.
   */
  async promote(version: LoadedVersion): Promise<void> {
    this.checkLoaded(version);
    if (version.place?.idle) {
      version.share = 0;
      this.choose();
      await version.place.idle();
      this.checkLoaded(version);
    }
    if (version === this.active) {
      return;
    }
    version.events.show();
    const before = this.active;
    version.role = 'active';
    version.place = undefined;
    this.active = version;
    this.choose();
    this.retire(before);
  }

  rollback(version: LoadedVersion): void {
    if (version === this.active) {
      throw new InvalidServingError(
        `Serving "${this.callbacks.name}": version "${version.label}" is the active one, and none ` +
          'is left to run its calls; reload the version that is to replace it',
      );
    }
    this.checkLoaded(version);
    this.retire(version);
  }

  drain(): void {
    this.isEnding = true;
    this.endLoading();
    this.all.forEach((version) => version.drain());
  }

  stop(rung: Rung, error: Error): boolean {
    this.isEnding = true;
    if (rung === 'abandon') {
      this.endLoading();
    }
    return [...this.all].map((version) => version.stop(rung, error)).includes(true);
  }

  async close(): Promise<void> {
    this.isEnding = true;
    await Promise.all([...this.all].map((version) => version.close()));
  }

  unfinished(): readonly string[] {
    return [...this.all].flatMap((version) => version.unfinished());
  }

  /** No call waits for a version that loads. */
  private endLoading(): void {
    const error = closedWhileLoading(this.callbacks.name);
    const loading = [...this.all].filter(({ role }) => role === 'loading');
    loading.forEach((version) => version.stop('end', error));
  }

  private get callable(): readonly LoadedVersion[] {
    return [...this.all].filter(({ role, place }) => role === 'active' || place?.takes);
  }

  private choose(): void {
    const placed = [...this.all].filter(({ place, share }) => place && share > 0);
    this.takers = placed.filter(({ place }) => place!.takes);
    this.witness = placed.find(({ place }) => place!.sees);
    const hasChoice = this.isRefusing || this.takers.length > 0 || this.witness !== undefined;
    this.only = hasChoice ? undefined : this.active;
    this.chosen$.next();
  }

  private checkLoaded(version: LoadedVersion): void {
    const { name } = this.callbacks;
    if (this.isEnding) {
      throw new ServingClosedError(`Serving "${name}" is closed, and its versions with it`);
    }
    if (version.role === 'draining') {
      throw new InvalidServingError(
        `Serving "${name}": version "${version.label}" has ended; reload its model`,
      );
    }
  }

  private retire(version: LoadedVersion): void {
    version.role = 'draining';
    version.place = undefined;
    this.choose();
    // No window waits for rows of calls that go elsewhere.
    version.drain();
    void this.free(version);
  }

  private async free(version: LoadedVersion): Promise<void> {
    const { name } = this.callbacks;
    await version.idle();
    try {
      await version.close();
      log.log(`Serving "${name}": version "${version.label}" has ended`);
    } catch (error) {
      log.error(`Serving "${name}": version "${version.label}" did not end: ${messageOf(error)}`);
    }
    this.remove(version);
  }

  private remove(version: LoadedVersion): void {
    version.events.leave();
    this.all.delete(version);
  }
}

function closedWhileLoading(serving: string): ServingClosedError {
  return new ServingClosedError(`Serving "${serving}" was closed while the version loaded`);
}
