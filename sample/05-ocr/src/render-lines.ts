import { createCanvas, type SKRSContext2D } from '@napi-rs/canvas';
import { writeFile } from 'node:fs/promises';
import type { Line } from './lines.service.js';

interface Style {
  readonly font: string;
  readonly ink?: string;
  readonly paper?: string;
  /** How far the line is from level, in degrees. */
  readonly tilt?: number;
}

const lines: readonly (Line & Style)[] = [
  { name: 'exit', text: 'EXIT', font: 'bold 36px DejaVu Sans', ink: '#ffffff', paper: '#0a7a3a' },
  { name: 'gate', text: 'Gate 12', font: '30px DejaVu Sans', ink: '#ffd400', paper: '#1c1c1c' },
  { name: 'hello', text: 'Hello, world!', font: '32px DejaVu Sans' },
  {
    name: 'departure',
    text: 'Departure 14:35',
    font: '30px DejaVu Sans Mono',
    ink: '#ffb000',
    paper: '#111111',
  },
  {
    name: 'total',
    text: 'Total: $1,234.56',
    font: '26px DejaVu Sans Mono',
    ink: '#222222',
    paper: '#ffffee',
    tilt: 0.8,
  },
  {
    name: 'invoice',
    text: 'Invoice 2024-0815',
    font: 'bold 28px DejaVu Sans',
    ink: '#000033',
    paper: '#eeeeff',
  },
  { name: 'order', text: 'Order at www.example.com', font: '24px DejaVu Sans', ink: '#333333' },
  {
    name: 'grass',
    text: 'Please keep off the grass',
    font: 'italic 28px DejaVu Serif',
    ink: '#154d1b',
    paper: '#e9f5e1',
  },
  {
    name: 'serial',
    text: 'Serial no. 4C-77-A9-1F',
    font: '26px DejaVu Sans Mono',
    paper: '#dddddd',
    tilt: -0.6,
  },
  {
    name: 'idle',
    text: 'Nobody waits while a partition is idle',
    font: '24px DejaVu Sans',
    ink: '#5b1a8f',
  },
  {
    name: 'fox',
    text: 'The quick brown fox jumps over the lazy dog',
    font: '24px DejaVu Serif',
    ink: '#111111',
  },
  {
    name: 'window',
    text: 'A window closes when it is full or when its time is over',
    font: '22px DejaVu Sans',
    ink: '#7a1f1f',
  },
];

const folder = new URL('../lines/', import.meta.url);

for (const line of lines) {
  await writeFile(new URL(`${line.name}.png`, folder), await render(line));
}
const list = lines.map(({ name, text }) => ({ name, text }));
await writeFile(new URL('lines.json', folder), `${JSON.stringify(list, null, 2)}\n`);

function render({
  text,
  font,
  ink = '#000000',
  paper = '#ffffff',
  tilt = 0,
}: Line & Style): Promise<Buffer> {
  const { width, size } = measure(text, font);
  const canvas = createCanvas(Math.ceil(width + size * 0.8), Math.round(size * 1.6));
  const context = canvas.getContext('2d');
  context.fillStyle = paper;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.translate(canvas.width / 2, canvas.height / 2);
  context.rotate((tilt / 180) * Math.PI);
  write(context, { text, font, ink });
  return canvas.encode('png');
}

function write(
  context: SKRSContext2D,
  { text, font, ink }: { text: string; font: string; ink: string },
): void {
  Object.assign(context, { font, fillStyle: ink, textAlign: 'center', textBaseline: 'middle' });
  context.fillText(text, 0, 0);
}

function measure(text: string, font: string): { width: number; size: number } {
  const context = createCanvas(1, 1).getContext('2d');
  context.font = font;
  return { width: context.measureText(text).width, size: Number(/\d+/.exec(font)) };
}
