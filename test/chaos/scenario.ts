import type { Stage } from './stage.js';

/** Something bad that happens to an application, and what it promises all the same. */
export interface Scenario {
  /** What `--only` calls it. */
  readonly name: string;
  /** What happens, for the table. */
  readonly title: string;
  play(stage: Stage): Promise<void>;
}
