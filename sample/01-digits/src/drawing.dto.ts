import { ArrayMaxSize, IsArray, Matches } from 'class-validator';
import { side } from './drawing.js';

/**
 * A digit drawn in text: 28 lines of 28 characters, from ' ' for paper over '.', ':', '+' and '*'
 * to '#' for ink.
 */
export class DrawingDto {
  @IsArray()
  @ArrayMaxSize(side)
  @Matches(/^[ .:+*#]{0,28}$/, {
    each: true,
    message: 'each line of image must be at most 28 of the characters " .:+*#"',
  })
  readonly image!: string[];
}
