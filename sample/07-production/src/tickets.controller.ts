import { Body, Controller, HttpCode, Post, UseGuards } from '@nestjs/common';
import { RequestSignal } from 'nestjs-serving';
import { ApiKeyGuard, Tenant } from './api-key.guard.js';
import { ClassifierService } from './classifier.service.js';
import { ApiClassification } from './document.js';
import { ClassificationDto, TicketDto, TicketsDto } from './ticket.dto.js';

@Controller('tickets')
@UseGuards(ApiKeyGuard)
export class TicketsController {
  constructor(private readonly classifier: ClassifierService) {}

  @Post('classify')
  @HttpCode(200)
  @ApiClassification({ summary: 'Finds the topic of a ticket', type: ClassificationDto })
  classify(
    @Body() ticket: TicketDto,
    @Tenant() tenant: string,
    @RequestSignal() signal: AbortSignal,
  ): Promise<ClassificationDto> {
    return this.classifier.classify(ticket, { tenant, signal });
  }

  @Post('classify/many')
  @HttpCode(200)
  @ApiClassification({
    summary: 'Finds the topics of up to 100 tickets, in their order',
    type: [ClassificationDto],
  })
  classifyMany(
    @Body() { tickets }: TicketsDto,
    @Tenant() tenant: string,
    @RequestSignal() signal: AbortSignal,
  ): Promise<ClassificationDto[]> {
    // After single tickets, which somebody waits for.
    return this.classifier.classifyAll(tickets, { tenant, priority: -1 }, signal);
  }
}
