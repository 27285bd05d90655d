// #region imports
import { Controller, Get, type MessageEvent, Query, Sse } from '@nestjs/common';
import {
  defineServing,
  DONE,
  InjectServing,
  last,
  type SequenceModel,
  type ServingOf,
} from 'nestjs-serving';
import { endWith, map, type Observable } from 'rxjs';
// #endregion
import { afterEach, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { RequestTooLargeError, ServingModule } from 'nestjs-serving';
import { iterated, outputsOf } from '../../fixtures/async/streams.js';
import { useServings } from '../../fixtures/serving/use-servings.js';

// #region model
interface Prompt {
  readonly text: string;
  readonly maxWords: number;
}

/** One row while it runs. A language model keeps its cache of keys and values here. */
interface Row {
  readonly words: readonly string[];
  readonly maxWords: number;
  next: number;
}

/** Writes the words of the prompt backwards, one per step. */
const reverser: SequenceModel<Prompt, string, Row> = {
  // Rows that join: reads their prompts, all in one run of the model.
  start: (prompts, { emitted }) =>
    prompts.map(({ text, maxWords }, i) =>
      text === ''
        ? new RangeError('The prompt is empty')
        : { words: text.split(' ').toReversed(), maxWords, next: emitted[i]!.length },
    ),

  // The next value of every row that is present, all in one run of the model.
  step: (rows) =>
    rows.map((row) => {
      const word = row.words[row.next++];
      return word === undefined ? DONE : row.next === row.maxWords ? last(word) : word;
    }),

  // The cost of a row that has this many values, for example the tokens in its cache.
  cost: ({ text }, values) => text.split(' ').length + values,
};
// #endregion

// #region definition
export const writer = defineServing({
  name: 'writer',
  batchSize: 8, // places of each partition: the most rows that run at once
  model: {
    useFactory: () => reverser,
    sequence: {
      joins: { rows: 4, cost: 256 }, // what may join before one step
      maxCost: 8192, // what all rows of a partition may cost together
    },
  },
});
// #endregion

// #region caller
@Controller()
export class WriterController {
  constructor(@InjectServing(writer) private readonly serving: ServingOf<typeof writer>) {}

  @Sse('words')
  words(@Query('prompt') text: string): Observable<MessageEvent> {
    const words = this.serving.stream({ text, maxWords: 100 });
    const events = words.pipe(map(({ output }) => ({ data: output }))); // a word
    // The page closes its EventSource then, and does not ask again.
    return events.pipe(endWith({ type: 'end', data: 'end' }));
  }

  @Get('text')
  async text(@Query('prompt') text: string): Promise<string> {
    const words = await this.serving.batchedRun({ text, maxWords: 100 });
    return words.join(' ');
  }
}
// #endregion

const row = (text: string, maxWords = 100): Prompt => ({ text, maxWords });

describe('The page on sequences', () => {
  const start = useServings();
  let app: INestApplication | undefined;

  afterEach(() => app?.close());

  it('[N7] The caller of the manual sends the words as events, and their list as a text', async () => {
    const testing = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [writer] })],
      controllers: [WriterController],
    }).compile();
    app = testing.createNestApplication();
    await app.listen(0, '127.0.0.1');
    const url = await app.getUrl();
    const answers = ['words', 'text'].map(async (path) => {
      const reply = await fetch(`${url}/${path}?prompt=a+b`);
      return reply.text();
    });

    expect(await Promise.all(answers)).toEqual([
      expect.stringMatching(
        /^\s*id: 1\ndata: b\n\nid: 2\ndata: a\n\nevent: end\nid: 3\ndata: end\n\n$/,
      ),
      'b a',
    ]);
  });

  it('[13.12] The steps of the manual say how many rows they ran', async () => {
    const lines: string[] = [];
    const log = (line: string): void => void lines.push(line);
    const serving = await start(writer);
    // #region steps
    serving.eventsOf('sequence:step').subscribe(({ partition, rows, waiting, runTime }) => {
      log(`${partition}: ${rows} rows in ${runTime} ms, ${waiting} more wait there`);
    });
    // #endregion
    await Promise.all([serving.batchedRun(row('a b')), serving.batchedRun(row('c d'))]);

    expect(lines[0]).toMatch(/^0: 2 rows in [\d.]+ ms, 0 more wait there$/);
  });

  it('[13.2] The model of the manual writes the words of a prompt one by one', async () => {
    const serving = await start(writer);
    const [events, list, cut] = await Promise.all([
      iterated(serving.stream(row('a b c'))),
      serving.batchedRun(row('d e')),
      serving.batchedRun(row('f g h', 2)),
    ]);

    expect(outputsOf(events)).toEqual(['c', 'b', 'a']);
    expect([list, cut]).toEqual([
      ['e', 'd'],
      ['h', 'g'],
    ]);
    await expect(serving.batchedRun(row(''))).rejects.toThrow('The prompt is empty');
    await expect(serving.batchedRun(row('a '.repeat(9000)))).rejects.toThrow(RequestTooLargeError);
  });
});
