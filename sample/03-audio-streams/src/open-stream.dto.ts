import { IsOptional, IsString, MaxLength } from 'class-validator';

export class OpenStreamDto {
  /** What the page calls the stream; by default, the beginning of its id. */
  @IsOptional()
  @IsString()
  @MaxLength(40)
  readonly name?: string;
}
