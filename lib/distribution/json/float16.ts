// Float16Array would do this, and Node has it only from version 24 on.

/** The number of a 16-bit float: sign, 5 bits of exponent, 10 of mantissa (IEEE 754, binary16). */
export function numberOfFloat16(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const mantissa = bits & 0x3ff;
  if (exponent === 0x1f) {
    return mantissa === 0 ? sign * Infinity : NaN;
  }
  return exponent === 0
    ? sign * mantissa * 2 ** -24
    : sign * (0x400 + mantissa) * 2 ** (exponent - 25);
}

/** The bits of the nearest 16-bit float; of two, the even one. */
export function float16OfNumber(value: number): number {
  if (Number.isNaN(value)) {
    return 0x7e00;
  }
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  // From 2 ** 16 on the nearest float is infinite; below 2 ** -14 all have one exponent.
  const size = Math.min(Math.abs(value), 2 ** 16);
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  // Adding 2 ** 52 rounds to a whole number, and ties to even. A mantissa that is too large carries
  // into the exponent: after rounding up, and where the logarithm is inexact near a power of two.
  const mantissa = size / 2 ** (exponent - 10) + 2 ** 52 - 2 ** 52;
  return sign | (((exponent + 14) << 10) + mantissa);
}
