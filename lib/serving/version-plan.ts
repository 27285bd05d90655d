import { isEndpoint, isModel } from '../definition/endpoint-rules.js';
import { isWatchable, modelOptionsOf } from '../definition/resolve-definition.js';
import type { ResolvedServing } from '../definition/resolved-serving.js';
import type { ServingDefinition } from '../definition/serving-definition.js';
import { InvalidServingError } from '../errors.js';
import type { Engine } from '../partitions/engine.js';
import type { ReloadOptions } from './serving-version.js';

/** What a version loads, and how a later version differs from it. */
export interface VersionPlan {
  readonly options: ResolvedServing;
  readonly engine: Engine;
  /**
   * The plan of a version that takes its place; undefined for what cannot be loaded again.
   *
   * @throws InvalidServingError for a model that the serving cannot have
   */
  readonly next?: ((change: VersionChange) => VersionPlan) | undefined;
}

/** The difference of a version to the one before. */
export type VersionChange = Pick<ReloadOptions, 'model'> & { readonly version: string };

/** The definition with the model and label of another version. */
export function changedDefinition(
  definition: ServingDefinition,
  { model, version }: VersionChange,
): ServingDefinition {
  // Further versions are those of the first one.
  const own = isModel(definition) ? { ...definition, versions: {}, version } : definition;
  if (model === undefined) {
    return { ...own, version };
  }
  if (!isModel(own)) {
    const advice = isEndpoint(own)
      ? "runs the model of a server; name another version of it: reload({ version: '2' })"
      : 'runs no model, so reload() cannot give it another; reload() without a model loads its file again';
    throw new InvalidServingError(`Serving "${definition.name}" ${advice}`);
  }
  // The hash is that of the other file.
  const { sha256: _sha256, ...kept } = modelOptionsOf(own);
  const changed = { ...kept, ...modelOptionsOf({ model }) };
  return { ...own, model: changed, watch: own.watch === true && isWatchable(changed) };
}
