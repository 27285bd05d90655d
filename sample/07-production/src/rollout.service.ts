import { Inject, Injectable, NotFoundException, type OnApplicationBootstrap } from '@nestjs/common';
import {
  InjectServing,
  type Serving,
  type ServingVersion,
  type VersionStatus,
} from 'nestjs-serving';
import type { Embedding } from 'nestjs-serving/tasks';
import { modelOf } from './model-file.js';
import { type Canary, type Settings, settings } from './settings.js';

/** Loads versions of the model beside the one that answers, and ends or promotes them. */
@Injectable()
export class RolloutService implements OnApplicationBootstrap {
  private readonly canaries = new Map<string, ServingVersion>();

  constructor(
    @InjectServing('embedder') private readonly embedder: Serving<string, Embedding>,
    @Inject(settings.KEY) private readonly config: Settings,
  ) {}

  /** The application listens once the canary of its settings is loaded too. */
  async onApplicationBootstrap(): Promise<void> {
    if (this.config.canary) {
      await this.load(this.config.canary);
    }
  }

  get versions(): readonly VersionStatus[] {
    return this.embedder.versions();
  }

  async load({ version, percent }: Canary): Promise<void> {
    const canary = await this.embedder.reload({
      model: modelOf(version),
      version,
      canary: percent / 100,
    });
    this.canaries.set(version, canary);
  }

  async promote(version: string): Promise<void> {
    await this.canaryOf(version).promote();
    this.canaries.delete(version);
  }

  async rollback(version: string): Promise<void> {
    await this.canaryOf(version).rollback();
    this.canaries.delete(version);
  }

  private canaryOf(version: string): ServingVersion {
    const canary = this.canaries.get(version);
    if (!canary) {
      const known = [...this.canaries.keys()].join(', ') || 'none';
      throw new NotFoundException(`There is no canary "${version}"; there are: ${known}`);
    }
    return canary;
  }
}
