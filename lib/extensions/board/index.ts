/**
 * `ServingBoardModule`: a page about an application's servings.
 *
 * @module board
 */

export type { ServingBoardChanges, ServingBoardOptions } from './options.js';
export { ServingBoardModule } from './serving-board.module.js';
