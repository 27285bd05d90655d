/** The bits of a 16-bit number: sign, 5 of exponent, 10 of mantissa (IEEE 754, binary16). */
const MANTISSA = 10;
const BIAS = 15;
const SMALLEST_NORMAL = 2 ** (1 - BIAS);
const STEP_BELOW = 2 ** (1 - BIAS - MANTISSA);
/**
 * From here on the nearest number is infinite. A number that rounds up to this becomes infinite by
 * itself.
 */
const TOO_LARGE = 2 ** 16;
const [INFINITE, NOT_A_NUMBER] = [0x7c00, 0x7e00];

/** The number of 16 bits: not every version of Node has Float16Array. */
export function numberOfHalf(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits & INFINITE) >> MANTISSA;
  const mantissa = bits & 0x3ff;
  if (exponent === 0x1f) {
    return mantissa ? NaN : sign * Infinity;
  }
  return (
    sign *
    (exponent === 0
      ? mantissa * STEP_BELOW
      : (1 + mantissa / 2 ** MANTISSA) * 2 ** (exponent - BIAS))
  );
}

/** The 16 bits of the nearest number; of two, the even one. */
export function halfOfNumber(value: number): number {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) {
    return NOT_A_NUMBER;
  }
  if (size >= TOO_LARGE) {
    return sign | INFINITE;
  }
  if (size < SMALLEST_NORMAL) {
    return sign | nearest(size / STEP_BELOW);
  }
  const exponent = exponentOf(size);
  // Rounding up to the next power of two carries into the exponent, as intended.
  return sign | (((exponent + BIAS - 1) << MANTISSA) + nearest(size / 2 ** (exponent - MANTISSA)));
}

function nearest(value: number): number {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}

const view = new DataView(new ArrayBuffer(8));

/** The exponent of a normal number above 0. A logarithm would be wrong near powers of two. */
function exponentOf(value: number): number {
  view.setFloat64(0, value);
  return (view.getUint16(0) >> 4) - 1023;
}
