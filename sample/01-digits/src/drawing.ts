/** Pixels along each side of an image. */
export const side = 28;

/** From paper to ink, as light and dark as the characters are. */
const shades = ' .:+*#';

/**
 * The ink of a text drawing, 0 to 1 for each pixel, row by row. Missing lines
 * and characters are paper.
 */
export function readDrawing(lines: readonly string[]): Float32Array {
  const ink = new Float32Array(side ** 2);
  lines.forEach((line, row) => {
    const shadesOfLine = Array.from(line, (shade) => shades.indexOf(shade) / (shades.length - 1));
    ink.set(shadesOfLine, row * side);
  });
  return ink;
}

/** The other way: text for the ink of an image. */
export function toDrawing(ink: Float32Array): string[] {
  const text = Array.from(ink, (value) => shades[Math.round(value * (shades.length - 1))]).join('');
  return Array.from({ length: side }, (_, row) => text.slice(row * side, (row + 1) * side));
}
