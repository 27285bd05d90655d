/** A number is a fixed size; a string names a dynamic axis, and may be empty. */
export type FileShape = readonly (number | string)[];

/** The axis that counts rows; `null`: there is none, `open`: the file leaves it undecided. */
export type FoundAxis = number | null | 'open';

/** What a model's inputs show about rows. */
export interface RowMarks {
  /** Names of the dynamic axes that count rows; several if the inputs disagree. */
  readonly names: ReadonlySet<string>;
  /** True if an axis that counts rows is dynamic. */
  readonly isLed: boolean;
  readonly isDynamic: boolean;
}

/** @param declared each input's declared axis, which counts its rows; by default the first */
export function rowMarksOf(
  shapes: readonly FileShape[],
  declared: readonly (number | null | undefined)[],
): RowMarks {
  const marks = shapes.map((shape, i) =>
    declared[i] === null ? undefined : shape[declared[i] ?? 0],
  );
  const names = marks.filter((dim) => typeof dim === 'string');
  return {
    names: new Set(names.filter((name) => !isUnnamed(name))),
    isLed: names.length > 0,
    isDynamic: shapes.some((shape) => dynamicAxes(shape).length > 0),
  };
}

/**
 * The batch axis of an input. Scalars have none, nor do fixed shapes in a model with dynamic axes
 * elsewhere. A first axis of length 1 counts one row: such a call runs alone, whatever it means.
 */
export function axisOfInput(shape: FileShape, { names, isLed, isDynamic }: RowMarks): FoundAxis {
  if (shape.length === 0) {
    return null;
  }
  const named = axesNamed(shape, names);
  if (named.length > 0) {
    return named.length === 1 && names.size === 1 ? named[0]! : 'open';
  }
  if (isDynamic && dynamicAxes(shape).length === 0) {
    return null;
  }
  if (typeof shape[0] === 'string' || shape[0] === 1) {
    return 0;
  }
  return isLed && names.size === 0 ? loneUnnamedAxis(shape) : 'open';
}

/**
 * The batch axis of an output; each run checks its length. Scalars have none.
 *
 * @param isDynamic true if any output has a dynamic axis; otherwise the file may state one row for
 * any number
 */
export function axisOfOutput(shape: FileShape, { names }: RowMarks, isDynamic: boolean): FoundAxis {
  if (shape.length === 0) {
    return null;
  }
  const named = axesNamed(shape, names);
  if (named.length > 0) {
    return named.length === 1 ? named[0]! : 'open';
  }
  if (dynamicAxes(shape).length === 0) {
    return isDynamic ? null : 0;
  }
  return typeof shape[0] === 'string' || shape[0] === 1 ? 0 : loneUnnamedAxis(shape);
}

export function isUnnamed(dim: number | string | undefined): boolean {
  return dim === '' || dim === '?';
}

export function dynamicAxes(shape: FileShape): number[] {
  return shape.flatMap((dim, axis) => (typeof dim === 'string' ? [axis] : []));
}

function axesNamed(shape: FileShape, names: ReadonlySet<unknown>): number[] {
  return shape.flatMap((dim, axis) => (names.has(dim) ? [axis] : []));
}

/** As in recurrent states of shape `[2, ?, 128]`. */
function loneUnnamedAxis(shape: FileShape): FoundAxis {
  const [axis, ...others] = dynamicAxes(shape);
  return axis !== undefined && others.length === 0 && isUnnamed(shape[axis]) ? axis : 'open';
}
