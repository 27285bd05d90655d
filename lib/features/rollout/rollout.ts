import {
  checkOptions,
  DEFAULT_VERSION,
  flag,
  isRecord,
  type Rules,
  share,
} from '../../core/definition/option-rules.js';
import { aModel, modelOf, movedRunner, pathOf } from '../../core/definition/resolve-definition.js';
import type {
  ModelFile,
  ModelOptions,
  ModelRepository,
  RolloutOptions,
  RunnerOptions,
} from '../../core/definition/serving-definition.js';
import { messageOf } from '../../core/errors.js';
import { formatValue } from '../../core/format.js';
import { log } from '../../core/log.js';
import { isPath, isRemote } from '../../core/partitions/model/remote-models.js';
import type { Feature } from '../../core/serving/feature.js';
import type { LoadedVersion } from '../../core/versions/loaded-version.js';
import type { Rollout, VersionLoads } from '../../core/versions/version-policy.js';
import { canary } from './canary.js';
import { FileWatch, stampOf } from './file-watch.js';
import { shadow, type ShadowComparison } from './shadow.js';

declare module '../../core/definition/serving-definition.js' {
  interface RolloutOptions {
    /**
     * Further versions of a model file from the boot on, by label:
     * `{ '2': { model: 'v2.onnx', canary: 0.05 } }`. One without `canary` and `shadow` gets only
     * calls that ask for it.
     *
     * @default none
     */
    readonly versions?: Readonly<Record<string, VersionOptions>>;
    /**
     * Whether the serving loads its model file again when it has changed and was written completely,
     * as `reload()` does. Only for a file of this machine; write a new one in the same folder, and
     * rename it.
     *
     * @default false
     */
    readonly watch?: boolean;
  }
}

declare module '../../core/versions/serving-version.js' {
  interface VersionRoles {
    canary: true;
    shadow: true;
  }

  interface ReloadOptions {
    /**
     * The share of calls that the version gets, from 0 to 1, with other canaries together at most 1;
     * the active version gets the rest. 0: only calls that ask for it by its label.
     *
     * @default the version replaces the active one
     */
    readonly canary?: number;
    /**
     * The share of calls of `batchedRun` that the version runs as well, from 0 to 1: the active
     * version answers them, and `versions()` compares the replies. Only for servings that are
     * `idempotent`, without sessions and sequences, whose models run apart from the application.
     *
     * @default the version replaces the active one
     * @experimental
     */
    readonly shadow?: number;
  }

  interface VersionStatus {
    /** A shadow's replies, compared with the active version's. */
    readonly comparison?: ShadowComparison;
  }
}

/** A version of a model, and the calls that it gets. */
export interface VersionOptions {
  /** The model. Options that it does not name, such as `session`, are the serving's. */
  readonly model: ModelFile | ModelOptions | ModelRepository;
  /**
   * The share of calls that it gets, from 0 to 1, with other canaries together at most 1.
   *
   * @default 0
   */
  readonly canary?: number;
  /**
   * The share of calls that it runs as well, and does not answer, from 0 to 1.
   *
   * @default it runs no copies
   * @experimental
   */
  readonly shadow?: number;
}

const ofVersion: Rules = { model: aModel, canary: share, shadow: share };

/** Versions share the calls, and load at the start or when their file has changed. */
export const rollout: Feature = {
  rules: {
    'rollout.watch': flag,
    'rollout.versions': {
      check: (value) => isRecord(value) && Object.values(value).every(isRecord),
      allowed: 'an object of { model, canary, shadow } by label',
    },
  },
  combinations: [
    ({ definition: { rollout: { versions } = {} }, runner }) =>
      versions &&
      runner.file === undefined &&
      'rollout.versions are further versions of a model file, and this serving runs none; leave it ' +
        'out',
    ({ definition: { rollout: { version = DEFAULT_VERSION, versions = {} } = {} } }) => {
      const label = Object.keys(versions).find((each) => each === '' || each === version);
      return (
        label !== undefined &&
        `rollout.versions has the label ${formatValue(label)}, which is that of the definition ` +
          'itself, or empty; give each version another'
      );
    },
    ({ definition, runner }) =>
      definition.rollout?.watch &&
      !isWatchable(runner) &&
      'rollout.watch needs a model that may change, with ' +
        (runner.sha256 === undefined ? 'a file of this machine' : 'no model.sha256') +
        '; leave it out, and call reload({ model })',
  ],
  policies: { canary, shadow },
  rolloutOf({ name, rollout: { versions = {}, watch = false } = {} }, model) {
    for (const [label, options] of Object.entries(versions)) {
      const owner = `Serving ${formatValue(name)} with "model"`;
      checkOptions(owner, options, ofVersion, `rollout.versions[${formatValue(label)}].`);
      const { file, sha256 } = movedRunner(model, options.model) ?? {};
      modelOf(name, { file: file!, sha256 });
    }
    return watch || Object.keys(versions).length > 0
      ? new OwnRollout(name, versions, watch)
      : undefined;
  },
};

/** True if the model's file can be watched, and may change. */
function isWatchable({ file, sha256 }: RunnerOptions): boolean {
  return file !== undefined && isPath(file) && !isRemote(file) && sha256 === undefined;
}

/** Loads the definition's further versions, and a file that has changed. */
class OwnRollout implements Rollout {
  private watched: { readonly file: string; readonly watch: FileWatch } | undefined;

  constructor(
    private readonly serving: string,
    private readonly versions: NonNullable<RolloutOptions['versions']>,
    private readonly isWatching: boolean,
  ) {}

  async markOf(model: RunnerOptions): Promise<string | undefined> {
    const file = this.fileOf(model);
    return file === undefined ? undefined : stampOf(file);
  }

  async begin(loads: VersionLoads): Promise<void> {
    for (const [version, options] of Object.entries(this.versions)) {
      const isAsked = options.canary === undefined && options.shadow === undefined;
      // A start may be repeated after one of them has failed.
      if (!loads.has(version)) {
        await loads.load({ version, ...options, ...(isAsked && { canary: 0 }) });
      }
    }
  }

  follow({ model, mark }: LoadedVersion, loads: VersionLoads): void {
    this.close();
    const file = this.fileOf(model);
    if (file !== undefined) {
      const changed = (): void => void this.reload(file, loads);
      this.watched = { file, watch: new FileWatch(file, mark as string | undefined, changed) };
    }
  }

  close(): void {
    this.watched?.watch.close();
    this.watched = undefined;
  }

  private fileOf(model: RunnerOptions): string | undefined {
    return this.isWatching && isWatchable(model) ? pathOf(model.file as string | URL) : undefined;
  }

  private async reload(file: string, loads: VersionLoads): Promise<void> {
    try {
      await loads.idle();
      if (this.watched?.file === file) {
        await loads.reload({});
      }
    } catch (error) {
      log.error(
        `Serving "${this.serving}" could not load the changed file ${file}; the previous version ` +
          `stays active, and the next change of the file is tried again: ${messageOf(error)}`,
      );
    }
  }
}
