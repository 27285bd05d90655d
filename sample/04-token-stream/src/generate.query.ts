import { Transform, Type } from 'class-transformer';
import { IsInt, IsNumber, IsString, Max, Min, MinLength } from 'class-validator';

/** The query of a client. Only the prompt is required. */
export class GenerateQuery {
  @Transform(({ value }: { value: unknown }) => (typeof value === 'string' ? value.trim() : value))
  @IsString({ message: 'Say something: /generate?prompt=...' })
  @MinLength(1, { message: 'Say something: /generate?prompt=...' })
  readonly prompt!: string;

  @Type(() => Number)
  @IsInt()
  @Min(1)
  @Max(1000)
  readonly maxTokens: number = 200;

  @Type(() => Number)
  @IsNumber()
  @Min(0)
  @Max(2)
  readonly temperature: number = 0;

  @Type(() => Number)
  @IsInt()
  @Min(1)
  @Max(100)
  readonly topK: number = 20;

  @Type(() => Number)
  @IsInt()
  readonly seed: number = 1;
}
