import { ApiProperty } from '@nestjs/swagger';
import { IsInt, Matches, Max, Min } from 'class-validator';
import { type Canary, versionPattern } from './settings.js';

export class CanaryDto implements Canary {
  @ApiProperty({ example: 'july', description: 'Its file is <version>.onnx.' })
  @Matches(versionPattern)
  readonly version!: string;

  @ApiProperty({ minimum: 0, maximum: 100, description: 'The share of the tenants.' })
  @IsInt()
  @Min(0)
  @Max(100)
  readonly percent!: number;
}
