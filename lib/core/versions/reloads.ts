import { checkOptions, type Rules, share } from '../definition/option-rules.js';
import { InvalidServingError } from '../errors.js';
import { log } from '../log.js';
import { bootLine, type LoadedVersion } from './loaded-version.js';
import type { ReloadOptions, ServingVersion, VersionRole } from './serving-version.js';
import type { VersionPlan } from './version-loader.js';
import type { Rollout, VersionLoads, VersionPolicies, VersionPolicy } from './version-policy.js';
import type { Versions } from './versions.js';

/** Loads a serving's versions at run time, one after the other. */
export class Reloads implements VersionLoads {
  /** The largest label that is a number. */
  private lastLabel: number;
  private loading: { readonly label: string; readonly done: Promise<unknown> } | undefined;
  /** Plans the version that was active before the present one. */
  private before: (() => VersionPlan) | undefined;
  private begun: Promise<void> | undefined;
  private readonly rules: Rules;

  constructor(
    private readonly serving: string,
    private readonly versions: Versions,
    /** Makes a version from its plan, without loading it. */
    private readonly versionOf: (plan: VersionPlan, isHidden?: boolean) => LoadedVersion,
    private readonly policies: VersionPolicies,
    private readonly rollout: Rollout | undefined,
  ) {
    this.lastLabel = numberIn(versions.active.label) ?? 1;
    const roles = Object.keys(policies).map((role) => [role, share]);
    this.rules = { ...own, ...(Object.fromEntries(roles) as Rules) };
  }

  /**
   * Loads a version within `recovery.restartTimeout`, like a partition's restart; it gets calls
   * when it is warm.
   */
  reload(options: ReloadOptions): Promise<ServingVersion> {
    return this.load(options, this.versions.active.options.recovery.restartTimeout);
  }

  load(options: ReloadOptions, limit?: number): Promise<ServingVersion> {
    const place = this.placeIn(options);
    return this.loadPlan(this.planOf(options, place), place, limit);
  }

  has(label: string): boolean {
    return this.versions.find(label) !== undefined;
  }

  async idle(): Promise<void> {
    await this.loading?.done.catch(() => {});
  }

  private async loadPlan(
    plan: VersionPlan,
    place: Place | undefined,
    limit?: number,
  ): Promise<ServingVersion> {
    const version = this.versionOf(plan, place?.policy.isHidden);
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
    if (place) {
      this.versions.place(version, place.role, place.policy, place.share);
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
    const begun = (this.begun ??= this.rollOut());
    begun.catch(() => (this.begun = this.begun === begun ? undefined : this.begun));
    return begun;
  }

  private async rollOut(): Promise<void> {
    await this.rollout?.begin(this);
    this.rollout?.follow(this.versions.active, this);
  }

  close(): void {
    this.rollout?.close();
  }

  private async promote(version: LoadedVersion): Promise<void> {
    const { active } = this.versions;
    await this.versions.promote(version);
    if (active !== version) {
      // Not the version itself, which would stay in memory.
      const { label, next } = active;
      this.before = next && (() => next({ version: label }));
    }
    this.rollout?.follow(this.versions.active, this);
  }

  private async rollback(version: LoadedVersion): Promise<void> {
    const { versions, before } = this;
    if (version !== versions.active || !before) {
      versions.rollback(version);
      return;
    }
    this.checkIdle();
    await this.loadPlan(before(), undefined, versions.active.options.recovery.restartTimeout);
    this.before = undefined;
  }

  /** @throws InvalidServingError for more than one role */
  private placeIn(options: ReloadOptions): Place | undefined {
    checkOptions(`The reload of serving "${this.serving}"`, options, this.rules);
    const [place, another] = Object.entries(this.policies).flatMap(([role, policy]) => {
      const given: unknown = options[role as keyof ReloadOptions];
      return given === undefined
        ? []
        : [{ role: role as VersionRole, policy, share: given as number }];
    });
    if (place && another) {
      throw new InvalidServingError(
        `The reload of serving "${this.serving}" has ${place.role} and ${another.role}, and a ` +
          'version has one role; leave one of them out',
      );
    }
    return place;
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
  private planOf(options: ReloadOptions, place: Place | undefined): VersionPlan {
    const { serving, versions } = this;
    const { active } = versions;
    const { model, version = String(this.lastLabel + 1) } = options;
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
    const obstacle = place?.policy.obstacle?.(active.options, versions);
    if (obstacle !== undefined) {
      throw new InvalidServingError(`Serving "${serving}" gets no ${place!.role}: ${obstacle}`);
    }
    const isReplaced = !place && version === active.label;
    if (versions.find(version) && !isReplaced) {
      throw new InvalidServingError(
        `Serving "${serving}" has a version "${version}" already; give the new one another label`,
      );
    }
    if (place && !place.policy.isHidden) {
      versions.checkShares(version, place.share);
    }
    return active.next({ model, version });
  }
}

/** The place that a version is loaded for. */
interface Place {
  readonly role: VersionRole;
  readonly policy: VersionPolicy;
  readonly share: number;
}

const own: Rules = {
  model: { check: (value) => value !== '', allowed: 'a model, as in the definition' },
  version: {
    check: (value) => typeof value === 'string' && value !== '',
    allowed: 'a string that is not empty',
  },
};

function numberIn(label: string): number | undefined {
  return /^\d{1,15}$/.test(label) ? Number(label) : undefined;
}
