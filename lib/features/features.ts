import { type AnyHandler, createServingWith } from '../core/serving/create-serving.js';
import { Features, type Provide } from '../core/serving/feature.js';
import type { LocalServing } from '../core/serving/local-serving.js';
import type { ServingDefinition } from '../core/definition/serving-definition.js';
import { deadlines } from './deadlines/deadlines.js';
import { deduplication } from './deduplication/deduplication.js';
import { onnx } from './onnx/onnx.js';
import { openers } from './openers.js';
import { rollout } from './rollout/rollout.js';
import { sequences } from './sequences/sequences.js';
import { sessions } from './sessions/sessions.js';

/** To delete a feature, delete its folder, and its name here and in `openers`. */
export const features = new Features(
  [onnx, deadlines, deduplication, rollout, sequences, sessions],
  openers,
);

/**
 * Creates a serving from its definition, not started: `await serving.start()`, then call it, then
 * `await serving.close()`.
 *
 * Inside Nest the module does all this. `handlerOf` returns a class serving's handler; by default
 * its class is constructed without arguments. `provide` returns a provider of the application by
 * its token: `deduplication.cache` asks for `CACHE_MANAGER`.
 *
 * @throws InvalidServingError when the definition is invalid
 */
export function createServing<Input, Output, Result, Info>(
  definition: ServingDefinition<Input, Output, Result, Info>,
  handlerOf?: () => AnyHandler,
  provide?: Provide,
): LocalServing<Input, Output> {
  const erased = definition as ServingDefinition;
  return createServingWith(features, erased, handlerOf, provide) as LocalServing<Input, Output>;
}
