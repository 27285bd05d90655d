import { ApiProperty } from '@nestjs/swagger';
import { Type } from 'class-transformer';
import {
  ArrayMaxSize,
  ArrayNotEmpty,
  IsArray,
  IsNotEmpty,
  IsString,
  MaxLength,
  ValidateNested,
} from 'class-validator';

export class TicketDto {
  @ApiProperty({ maxLength: 200, example: 'Still waiting' })
  @IsString()
  @IsNotEmpty()
  @MaxLength(200)
  readonly subject!: string;

  @ApiProperty({ maxLength: 5000, example: 'I ordered two weeks ago and nothing has arrived.' })
  @IsString()
  @MaxLength(5000)
  readonly text!: string;
}

export class TicketsDto {
  @ApiProperty({ type: [TicketDto], minItems: 1, maxItems: 100 })
  @IsArray()
  @ArrayNotEmpty()
  @ArrayMaxSize(100)
  @ValidateNested({ each: true })
  @Type(() => TicketDto)
  readonly tickets!: TicketDto[];
}

export class ClassificationDto {
  @ApiProperty({ example: 'delivery' })
  readonly topic!: string;

  @ApiProperty({ minimum: 0, maximum: 1, example: 0.93 })
  readonly confidence!: number;

  @ApiProperty({ description: 'The example sentence nearest to the ticket.' })
  readonly example!: string;
}
