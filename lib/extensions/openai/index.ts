/**
 * `OpenAIModule`: servings of `nestjs-serving/tasks` for clients of OpenAI's API.
 *
 * @module openai
 */

export type { OfferedTask, OpenAIOptions } from './models.js';
export { OpenAIModule } from './openai.module.js';
