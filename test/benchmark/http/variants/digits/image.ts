/** The body of a request: the pixels of a drawing. */
export class ImageDto {
  readonly image!: number[];
}

export interface Reply {
  readonly digit: number;
}

export function likeliest(values: Float32Array): number {
  let best = 0;
  for (let index = 1; index < values.length; index++) {
    if (values[index]! > values[best]!) best = index;
  }
  return best;
}
