import { expect, it } from '@jest/globals';
import { createCanvas } from '@napi-rs/canvas';
import { decodeImage, toTensor, widthOf } from '../../../sample/05-ocr/src/line-image.js';

async function upload(width: number, height: number, colour: string) {
  const canvas = createCanvas(width, height);
  const context = canvas.getContext('2d');
  context.fillStyle = colour;
  context.fillRect(0, 0, width, height);
  return decodeImage(await canvas.encode('png'));
}

it('A line is scaled to the height of the model', async () => {
  expect(widthOf(await upload(100, 24, 'white'))).toBe(200);
  expect(widthOf(await upload(1, 200, 'white'))).toBe(1);
});

it('The tensor has planes of blue, green and red from -1 to 1, and grey after the end of the line', async () => {
  const { dims, data } = toTensor(await upload(2, 48, 'rgb(255, 51, 0)'), 2, 3);
  const row = (plane: number, y: number) => [
    ...(data as Float32Array).subarray((plane * 48 + y) * 3, (plane * 48 + y + 1) * 3),
  ];

  expect(dims).toEqual([1, 3, 48, 3]);
  for (const y of [0, 20, 47]) {
    expect(row(0, y)).toEqual([-1, -1, 0]);
    expect(row(1, y)).toEqual([Math.fround(-0.6), Math.fround(-0.6), 0]);
    expect(row(2, y)).toEqual([1, 1, 0]);
  }
});

it('Transparent pixels appear on white', async () => {
  const { data } = toTensor(await upload(1, 48, 'transparent'), 1, 1);

  expect(new Set(data as Float32Array)).toEqual(new Set([1]));
});
