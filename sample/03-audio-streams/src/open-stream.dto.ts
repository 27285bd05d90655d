import { IsOptional, IsString, MaxLength } from 'class-validator';

export class OpenStreamDto {
  /** The name of the stream on the page. @default the beginning of its id */
  @IsOptional()
  @IsString()
  @MaxLength(40)
  readonly name?: string;
}
