export { imageClassification, type ImageClassificationOptions } from './image-classification.js';
export {
  imageEmbedding,
  type ImageEmbedding,
  type ImageEmbeddingOptions,
} from './image-embedding.js';
export type { ImageFile, ImageInput, ImageTaskOptions } from './image-model.js';
export type { Pooling } from './outputs.js';
export type { ModelFiles } from './repository.js';
export { type DocumentsToRank, type RankedDocument, rerank, type RerankOptions } from './rerank.js';
export type { LabelOptions, LabelScore } from './labels.js';
export {
  textClassification,
  type TextClassificationOptions,
  type TextToClassify,
} from './text-classification.js';
export {
  type Embedding,
  textEmbedding,
  type TextEmbeddingOptions,
  type TextToEmbed,
} from './text-embedding.js';
export type { TaskModel, TaskModelOptions, TaskOptions } from './task-model.js';
export type { TextBatchSize, TextTaskOptions } from './text-model.js';
export {
  type SpeechModelPlace,
  type SpeechToTextOptions,
  type SpeechToWrite,
  speechToText,
} from './speech-to-text.js';
export type {
  Transcript,
  TranscriptSegment,
  TranscriptWindow,
  TranscriptWord,
} from './transcriber.js';
export {
  type EntityAggregation,
  type TextEntity,
  tokenClassification,
  type TokenClassificationOptions,
} from './token-classification.js';
export { type TextToLabel, zeroShotClassification, type ZeroShotOptions } from './zero-shot.js';
export type { TooLong } from './text-tokenizer.js';
export type { AnswerFormat, NamedTool, SchemaFormat, ToolChoice } from './answer-form.js';
export type { ChatTool, TemplateVariables } from './chat.js';
export type { FinishReason, GeneratedText, GenerationUsage, TokenLogprob } from './generator.js';
export type { ToolCall } from './tool-calls.js';
export {
  type ChatMessage,
  type ChatToAnswer,
  type GenerationOptions,
  type GeneratorModel,
  type PastToolCall,
  textGeneration,
  type TextGenerationOptions,
  type TextToContinue,
} from './text-generation.js';
