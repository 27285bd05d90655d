import { Body, Controller, Delete, HttpCode, Post } from '@nestjs/common';
import { SimulationDto } from './simulation.dto.js';
import { SimulationService } from './simulation.service.js';

@Controller('simulation')
export class SimulationController {
  constructor(private readonly simulations: SimulationService) {}

  @Post()
  @HttpCode(204)
  start(@Body() simulation: SimulationDto): void {
    this.simulations.start(simulation);
  }

  @Delete()
  @HttpCode(204)
  stop(): void {
    this.simulations.stop();
  }
}
