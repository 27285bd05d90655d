/**
 * `ServingBoardModule`: a page of the servings of an application, and of what they do.
 *
 * @module board
 */

export type { ServingBoardChanges, ServingBoardOptions } from './options.js';
export { ServingBoardModule } from './serving-board.module.js';
