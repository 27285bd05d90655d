/** Digits that JavaScript reads exactly: numbers with no more are in the order of their texts. */
export const EXACT_DIGITS = 15;

/** Numbers that a schema allows. */
export interface Numbers {
  readonly least: number;
  readonly most: number;
  /** True if the bounds themselves are left out. */
  readonly isOpenBelow: boolean;
  readonly isOpenAbove: boolean;
  /** Most digits behind the point. */
  readonly decimals: number;
  /** All are whole multiples of `step / 10 ** stepDecimals`. */
  readonly step: number;
  readonly stepDecimals: number;
}

export function numbersIn(
  schema: Readonly<Record<string, number | undefined>>,
  type: 'number' | 'integer',
): Numbers {
  const {
    minimum = -Infinity,
    exclusiveMinimum = -Infinity,
    maximum = Infinity,
    exclusiveMaximum = Infinity,
    multipleOf,
  } = schema;
  const stepDecimals = multipleOf === undefined ? EXACT_DIGITS - 1 : decimalsOf(multipleOf)!;
  return {
    least: Math.max(minimum, exclusiveMinimum),
    most: Math.min(maximum, exclusiveMaximum),
    isOpenBelow: exclusiveMinimum >= minimum,
    isOpenAbove: exclusiveMaximum <= maximum,
    decimals: type === 'integer' ? 0 : stepDecimals,
    step: multipleOf === undefined ? 1 : Math.round(multipleOf * 10 ** stepDecimals),
    stepDecimals,
  };
}

/** Digits behind a number's point; undefined if JavaScript does not read its digits exactly. */
export function decimalsOf(value: number): number | undefined {
  return Array.from({ length: EXACT_DIGITS }, (_, count) => count).find((count) => {
    const digits = Math.round(value * 10 ** count);
    return digits < 10 ** (EXACT_DIGITS - 1) && digits / 10 ** count === value;
  });
}

/** Digits of a number: `whole` of them before the point, and at most `decimals` behind it. */
interface Digits {
  readonly whole: number;
  readonly decimals: number;
  /** Bounds of all these digits, read as one whole number. */
  readonly least: number;
  readonly most: number;
}

/** Digits of the numbers from 0 on, by their count before the point. */
function digitsOf(numbers: Numbers): readonly Digits[] {
  const { least, most, isOpenBelow, isOpenAbove, step } = numbers;
  return Array.from({ length: EXACT_DIGITS }, (_, i) => {
    const decimals = Math.min(numbers.decimals, EXACT_DIGITS - 1 - i);
    const unit = 10 ** decimals;
    const [from, to] = [Math.round(least * unit), Math.round(most * unit)];
    const isBelow = isOpenBelow ? from / unit <= least : from / unit < least;
    const isAbove = isOpenAbove ? to / unit >= most : to / unit > most;
    return {
      whole: i + 1,
      decimals,
      least: Math.max(i === 0 ? 0 : 10 ** i * unit, isBelow ? from + 1 : from),
      most: Math.min(10 ** (i + 1) * unit - 1, isAbove ? to - 1 : to),
    };
  }).filter(
    (each) => each.least <= each.most && (step === 1 || each.decimals === numbers.decimals),
  );
}

/** Place in a number's text. */
export interface Place {
  readonly id: number;
  /** Places behind the digits that may follow. */
  readonly next: readonly (readonly [digit: number, place: Place])[];
  readonly behindPoint: Place | undefined;
  /** Digits behind the point that may still follow; undefined if the text can't end here. */
  readonly missing: number | undefined;
}

/**
 * @param isBegun whether this part of the number has a digit
 * @param known places by what may follow
 */
function placeOf(
  digits: readonly Digits[],
  isBegun: boolean,
  isBehindPoint: boolean,
  known: Map<string, Place>,
): Place {
  let key = `${isBegun} ${isBehindPoint}`;
  for (const { whole, decimals, least, most } of digits) {
    key += ` ${whole} ${decimals} ${least} ${most}`;
  }
  const found = known.get(key);
  if (found) {
    return found;
  }
  const ended = isBegun ? digits.find(({ whole }) => whole === 0) : undefined;
  const next = Array.from({ length: 10 }, (_, digit) => {
    const left = digits.flatMap((each) => digitsBehind(each, digit, isBehindPoint));
    return left.length > 0 ? [[digit, placeOf(left, true, isBehindPoint, known)] as const] : [];
  }).flat();
  const hasPoint = !isBehindPoint && ended && ended.decimals > 0;
  const behindPoint = hasPoint ? placeOf([ended], false, true, known) : undefined;
  const missing = ended?.least === 0 ? ended.decimals : undefined;
  // The others are known by now.
  const place = { id: known.size, next, behindPoint, missing };
  known.set(key, place);
  return place;
}

/** Digits behind one that may stand there. */
function digitsBehind(digits: Digits, digit: number, isBehindPoint: boolean): readonly Digits[] {
  const part = isBehindPoint ? 'decimals' : 'whole';
  const place = 10 ** (digits.whole + digits.decimals - 1);
  const least = Math.max(0, digits.least - digit * place);
  const most = Math.min(place - 1, digits.most - digit * place);
  return digits[part] > 0 && least <= most
    ? [{ ...digits, [part]: digits[part] - 1, least, most }]
    : [];
}

/** Rules of numbers' texts. */
export class NumberRules {
  private readonly known = new Map<string, string | undefined>();

  /**
   * @param places of any numbers, by what may follow
   * @param add names a rule
   * @param count called for each rule that may be needed
   */
  constructor(
    private readonly numbers: Numbers,
    private readonly places: Map<string, Place>,
    private readonly add: (text: string) => string,
    private readonly count: () => void,
  ) {}

  /** Alternatives; empty if there is no such number. */
  alternatives(): readonly string[] {
    const { least, most, isOpenBelow, isOpenAbove } = this.numbers;
    // 0 has no sign.
    const [from, isOpen] = most < 0 ? [-most, isOpenAbove] : [0, true];
    const below = { least: from, isOpenBelow: isOpen, most: -least, isOpenAbove: isOpenBelow };
    return [...this.from(this.numbers, ''), ...this.from({ ...this.numbers, ...below }, '"-" ')];
  }

  private from(numbers: Numbers, sign: string): readonly string[] {
    const digits = digitsOf(numbers);
    const rule =
      digits.length > 0 ? this.rule(placeOf(digits, false, false, this.places), 0) : undefined;
    return rule === undefined ? [] : [`${sign}${rule}`];
  }

  /**
   * @param remainder of the digits so far, divided by the step
   * @returns undefined if nothing fits
   */
  private rule(place: Place, remainder: number): string | undefined {
    const key = `${place.id} ${remainder}`;
    if (!this.known.has(key)) {
      this.count();
      this.known.set(key, this.written(place, remainder));
    }
    return this.known.get(key);
  }

  private written({ next, behindPoint, missing }: Place, remainder: number): string | undefined {
    const ways = new Map<string, string>();
    for (const [digit, place] of next) {
      const rule = this.rule(place, (remainder * 10 + digit) % this.numbers.step);
      if (rule !== undefined) {
        ways.set(rule, `${ways.get(rule) ?? ''}${digit}`);
      }
    }
    const point = behindPoint && this.rule(behindPoint, remainder);
    const alternatives = [
      ...[...ways].map(([rule, digits]) => `[${digits}] ${rule}`),
      ...(point === undefined ? [] : [`"." ${point}`]),
      ...(missing !== undefined && this.isMultiple(remainder, missing) ? ['""'] : []),
    ];
    return alternatives.length > 0 ? this.add(alternatives.join(' | ')) : undefined;
  }

  /** True if a number that ends here is a multiple of the step. */
  private isMultiple(remainder: number, missing: number): boolean {
    const { step, stepDecimals, decimals } = this.numbers;
    let left = remainder;
    for (let zeros = missing + stepDecimals - decimals; zeros > 0; zeros--) {
      left = (left * 10) % step;
    }
    return left === 0;
  }
}
