import type { ServingDefinition } from '../../index.js';
import {
  type ImageFacts,
  type ImageInput,
  ImageModel,
  type ImageTaskOptions,
} from './image-model.js';
import {
  bestLabels,
  type LabelFacts,
  type LabelOptions,
  labelRules,
  type LabelScore,
  labelFactsIn,
  readLogits,
} from './labels.js';
import type { Outputs } from './outputs.js';

/** The options of {@link imageClassification}, beside those of any serving. */
export interface ImageClassificationOptions
  extends ImageTaskOptions<readonly LabelScore[]>, LabelOptions {}

/**
 * A serving that gives images labels with scores, the best first, by a model for image
 * classification. Images are prepared as preprocessor_config.json says, in threads of libuv.
 *
 * Needs `sharp`. Refuses to start if the model's images are prepared in a way that it doesn't have.
 *
 * @throws InvalidServingError for an invalid option
 */
export function imageClassification(
  options: ImageClassificationOptions,
): ServingDefinition<ImageInput, readonly LabelScore[]> {
  const own: ImageModel<readonly LabelScore[], LabelFacts> = new ImageModel(
    'imageClassification',
    options,
    labelRules,
    labelFactsIn(options),
    (outputs, facts) => void readLogits(own.owner, outputs, facts),
  );
  const definition: ServingDefinition<
    ImageInput,
    readonly LabelScore[],
    Outputs,
    unknown,
    ImageFacts<LabelFacts>
  > = {
    ...own.definition,
    async preprocess(input, { signature, facts }) {
      return { batch: await own.encode(input, signature!, facts) };
    },
    postprocess: (outputs, { facts }) => bestLabels(own.owner, outputs, facts.own, options),
  };
  return definition;
}
