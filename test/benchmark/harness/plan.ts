/** How much to measure. */
export interface Plan {
  /** How often every contender runs. */
  readonly rounds: number;
  /** About how long one contender runs in one round. */
  readonly seconds: number;
}

/** Many short rounds rather than few long ones: a disturbance then spoils one round of many. */
export const full: Plan = { rounds: 9, seconds: 0.6 };
export const quick: Plan = { rounds: 3, seconds: 0.3 };
