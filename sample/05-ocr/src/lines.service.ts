import { Injectable, NotFoundException, type OnModuleInit } from '@nestjs/common';
import { readFile } from 'node:fs/promises';

/** A line whose text is known; its image is `name.png` beside the list. */
export interface Line {
  readonly name: string;
  readonly text: string;
}

const folder = new URL('../lines/', import.meta.url);

@Injectable()
export class LinesService implements OnModuleInit {
  all: readonly Line[] = [];

  async onModuleInit() {
    this.all = JSON.parse(await readFile(new URL('lines.json', folder), 'utf8')) as Line[];
  }

  imageOf(name: string): URL {
    if (!this.all.some((line) => line.name === name)) {
      throw new NotFoundException(`There is no line "${name}"`);
    }
    return new URL(`${name}.png`, folder);
  }
}
