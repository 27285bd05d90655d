import { groupOf, milliseconds, whole } from '../../core/definition/option-rules.js';
import { InvalidInputError } from '../../core/errors.js';
import type {
  OpenStates,
  StatesOpener,
  VersionOfStates,
} from '../../core/execution/kept-states.js';
import type { RunnerOptions } from '../../core/definition/serving-definition.js';
import type { Feature } from '../../core/serving/feature.js';
import { LocalSessions } from './local-sessions.js';

declare module '../../core/definition/serving-definition.js' {
  interface CodeOptions {
    /**
     * Gives callers sessions: `serving.open()`. Each call of a session is a step from the state that
     * its last one left, and batches hold steps of different sessions. All calls are then made in
     * sessions.
     *
     * @default calls are independent of each other
     */
    readonly sessions?: SessionsOptions | undefined;
  }

  interface ModelRunner<Facts> {
    /**
     * Limits sessions, for a model with `state`.
     *
     * @default {}
     */
    readonly sessions?: SessionsOptions;
  }
}

/** Sessions: calls whose state stays with a partition from one call to the next. */
export interface SessionsOptions {
  /**
   * The largest number of open sessions; beyond it `open` throws an OverloadedError.
   *
   * @default 1000
   */
  readonly max?: number;
  /**
   * Milliseconds from its last call after which a session ends.
   *
   * @default 60000
   */
  readonly idle?: number;
}

export const sessions: Feature = {
  ofModel: {
    sessions: groupOf({ max: whole(1, Number.MAX_SAFE_INTEGER), idle: milliseconds(1) }),
  },
  combinations: [
    ({ runner: { file, sessions: options, state } }) =>
      options &&
      file !== undefined &&
      !state &&
      'sessions need the state that they keep; name the inputs and outputs of the model that are ' +
        "one: model: { file, state: { input: 'output' } }",
    ({ states, size: { latencyTarget } }) =>
      states &&
      latencyTarget !== undefined &&
      'a latencyTarget cannot size the batches of sessions, whose calls wait for their own ' +
        'partition; leave it out, and give calls a timeout',
  ],
  statesOf(model) {
    const options = optionsOf(model);
    return options && new Sessions(options);
  },
  ofStandInModel: (model) => ({ sessions: optionsOf(model) }),
};

/** A model with `state` has sessions by default. */
function optionsOf({ sessions: options, state }: RunnerOptions): SessionsOptions | undefined {
  return options ?? (state ? {} : undefined);
}

class Sessions implements StatesOpener {
  readonly kind = 'sessions';
  readonly idle: number;
  readonly max: number;

  constructor({ max = 1000, idle = 60_000 }: SessionsOptions) {
    this.max = max;
    this.idle = idle;
  }

  outside(serving: string): Error {
    return new InvalidInputError(
      `Serving "${serving}" keeps a state for each session; make the call in one: ` +
        'serving.open().run(input)',
    );
  }

  open(version: VersionOfStates): OpenStates {
    return new LocalSessions(this, version);
  }
}
