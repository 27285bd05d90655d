import { IsInt, IsNumber, Max, Min } from 'class-validator';

export class SimulationDto {
  @IsInt()
  @Min(1)
  @Max(200)
  readonly streams!: number;

  /** How much faster than in life they speak. */
  @IsNumber()
  @Min(1)
  @Max(100)
  readonly speed!: number;
}
