/** How alike two images are, at most 1; NaN where one of them is blank. */
export function cosine(one: Float32Array, other: Float32Array): number {
  return dot(one, other) / Math.sqrt(dot(one, one) * dot(other, other));
}

function dot(one: Float32Array, other: Float32Array): number {
  let sum = 0;
  for (let index = 0; index < one.length; index++) {
    sum += one[index]! * other[index]!;
  }
  return sum;
}
