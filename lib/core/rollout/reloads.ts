import { checkOptions, type Rules, share } from '../definition/option-rules.js';
import { InvalidServingError, messageOf } from '../errors.js';
import { log } from '../log.js';
import { bootLine, type LoadedVersion } from './loaded-version.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import { FileWatch } from './file-watch.js';
import type { ReloadOptions, ServingVersion } from './serving-version.js';
import type { VersionPlan } from './version-loader.js';
import type { Versions } from './versions.js';

/** Loads a serving's versions at run time, one after the other. */
export class Reloads {
  /** The largest label that is a number. */
  private lastLabel: number;
  private loading: { readonly label: string; readonly done: Promise<unknown> } | undefined;
  private watch: FileWatch | undefined;
  /** Plans the version that was active before the present one. */
  private before: (() => VersionPlan) | undefined;
  private begun: Promise<void> | undefined;

  constructor(
    private readonly serving: string,
    private readonly versions: Versions,
    /** Makes a version from its plan, without loading it. */
    private readonly versionOf: (plan: VersionPlan, isShadow: boolean) => LoadedVersion,
  ) {
    this.lastLabel = numberIn(versions.active.label) ?? 1;
  }

  /**
   * Loads a version within `recovery.restartTimeout`, like a partition's restart; it gets calls
   * when it is warm.
   */
  reload(options: ReloadOptions): Promise<ServingVersion> {
    return this.load(options, this.versions.active.options.recovery.restartTimeout);
  }

  /** Loads at boot have no limit: they may fetch a model. */
  private load(options: ReloadOptions, limit?: number): Promise<ServingVersion> {
    return this.loadPlan(this.planOf(options), options, limit);
  }

  private async loadPlan(
    plan: VersionPlan,
    { canary, shadow }: ReloadOptions,
    limit?: number,
  ): Promise<ServingVersion> {
    const version = this.versionOf(plan, shadow !== undefined);
    const { label } = version;
    const done = this.versions.load(version, limit);
    this.loading = { label, done };
    try {
      await done;
    } finally {
      this.loading = undefined;
    }
    this.lastLabel = Math.max(this.lastLabel, numberIn(label) ?? 0);
    log.log(bootLine(version.options, version, label));
    if (canary !== undefined) {
      this.versions.addCanary(version, canary);
    } else if (shadow !== undefined) {
      this.versions.addShadow(version, shadow);
    } else {
      await this.promote(version);
    }
    return this.handleOf(version);
  }

  handleOf(version: LoadedVersion): ServingVersion {
    const { versions } = this;
    return {
      version: version.label,
      get share() {
        return version.currentShare;
      },
      set share(value) {
        versions.setShare(version, value);
      },
      promote: () => this.promote(version),
      rollback: () => this.rollback(version),
    };
  }

  begin(): Promise<void> {
    const begun = (this.begun ??= this.loadDefined());
    begun.catch(() => (this.begun = this.begun === begun ? undefined : this.begun));
    return begun;
  }

  private async loadDefined(): Promise<void> {
    const { versions } = this.versions.active.options;
    for (const [version, options] of Object.entries(versions)) {
      const { canary } = options;
      // A start may be repeated after one of them has failed.
      if (!this.versions.find(version)) {
        const isAsked = canary === undefined && options.shadow === undefined;
        await this.load({ version, ...options, ...(isAsked && { canary: 0 }) });
      }
    }
    this.follow();
  }

  follow(): void {
    this.watch?.close();
    const { options, stamp } = this.versions.active;
    this.watch =
      options.watch === undefined
        ? undefined
        : new FileWatch(options.watch, stamp, () => void this.reloadChanged(options.watch!));
  }

  close(): void {
    this.watch?.close();
  }

  private async promote(version: LoadedVersion): Promise<void> {
    const { active } = this.versions;
    await this.versions.promote(version);
    if (active !== version) {
      // Not the version itself, which would stay in memory.
      const { label, next } = active;
      this.before = next && (() => next({ version: label }));
    }
    this.follow();
  }

  private async rollback(version: LoadedVersion): Promise<void> {
    const { versions, before } = this;
    if (version !== versions.active || !before) {
      versions.rollback(version);
      return;
    }
    this.checkIdle();
    await this.loadPlan(before(), {}, versions.active.options.recovery.restartTimeout);
    this.before = undefined;
  }

  private async reloadChanged(file: string): Promise<void> {
    try {
      await this.loading?.done.catch(() => {});
      if (this.versions.active.options.watch === file) {
        await this.reload({});
      }
    } catch (error) {
      log.error(
        `Serving "${this.serving}" could not load the changed file ${file}; the previous version ` +
          `stays active, and the next change of the file is tried again: ${messageOf(error)}`,
      );
    }
  }

  /** @throws InvalidServingError if copies of calls could change what callers get */
  private checkShadow(options: ResolvedServing, canary: number | undefined): void {
    const obstacle =
      canary !== undefined
        ? 'a version is a canary or a shadow, and not both'
        : this.versions.shadow
          ? 'it has one already; promote it or roll it back first'
          : shadowObstacle(options);
    if (obstacle !== undefined) {
      throw new InvalidServingError(`Serving "${this.serving}" gets no shadow: ${obstacle}`);
    }
  }

  /** @throws InvalidServingError while a version loads */
  private checkIdle(): void {
    const { serving, loading } = this;
    if (loading) {
      throw new InvalidServingError(
        `Serving "${serving}" is loading version "${loading.label}"; reload again once that has ` +
          'ended',
      );
    }
  }

  /** @throws InvalidServingError for options that make no version */
  private planOf(options: ReloadOptions): VersionPlan {
    const { serving, versions } = this;
    const { active } = versions;
    checkOptions(`The reload of serving "${serving}"`, options, rules);
    const { canary, shadow, model, version = String(this.lastLabel + 1) } = options;
    if (!active.next) {
      throw new InvalidServingError(
        `Serving "${serving}" runs code of the application, which cannot be loaded again; give ` +
          'what shall be reloaded a file of its own, with model or useFile, or restart the ' +
          'application',
      );
    }
    this.checkIdle();
    if (active.options.runner === 'external model' && options.version === undefined) {
      throw new InvalidServingError(
        `Serving "${serving}" runs the model of a server, which has its own versions; name one: ` +
          "reload({ version: '2' })",
      );
    }
    if (shadow !== undefined) {
      this.checkShadow(active.options, canary);
    }
    const isReplaced = canary === undefined && shadow === undefined && version === active.label;
    if (versions.find(version) && !isReplaced) {
      throw new InvalidServingError(
        `Serving "${serving}" has a version "${version}" already; give the new one another label`,
      );
    }
    return active.next({ model, version });
  }
}

function shadowObstacle({
  states,
  continuous,
  isolation,
  recovery,
}: ResolvedServing): string | undefined {
  const stateful = states ?? continuous;
  if (stateful) {
    return `it has ${stateful.kind}, whose copies would have states of their own`;
  }
  if (isolation === 'none') {
    return 'its model runs in the thread of the application, where copies would delay all calls';
  }
  return recovery.idempotent
    ? undefined
    : 'its batches must not run twice; say recovery.idempotent: true if they may';
}

const rules: Rules = {
  model: { check: (value) => value !== '', allowed: 'a model, as in the definition' },
  version: {
    check: (value) => typeof value === 'string' && value !== '',
    allowed: 'a string that is not empty',
  },
  canary: share,
  shadow: share,
};

function numberIn(label: string): number | undefined {
  return /^\d{1,15}$/.test(label) ? Number(label) : undefined;
}
