import { afterEach, describe, expect, it } from '@jest/globals';
import type { INestApplication } from '@nestjs/common';
import { Controller, Module, Param, Post, Sse } from '@nestjs/common';
import { ConfigModule, ConfigService } from '@nestjs/config';
import {
  AbstractGraphQLDriver,
  Args,
  Field,
  Float,
  GraphQLModule,
  ObjectType,
  Query,
  Resolver,
} from '@nestjs/graphql';
import { graphql, type GraphQLSchema } from 'graphql';
import { WsAdapter } from '@nestjs/platform-ws';
import { Test } from '@nestjs/testing';
import { MessageBody, SubscribeMessage, WebSocketGateway } from '@nestjs/websockets';
import {
  Batched,
  defineServing,
  InjectServing,
  ServingModule,
  type ServingOf,
  ServingService,
} from 'nestjs-serving';
import { Logger, LoggerModule } from 'nestjs-pino';
import { map, type Observable } from 'rxjs';
import { WebSocket } from 'ws';

const words = defineServing({
  name: 'words',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.split(' ').length) },
});

// #region graphql
@ObjectType()
class Text {
  @Field(() => String)
  text!: string;

  @Field(() => Float)
  words!: number;
}

@Resolver(() => Text)
export class TextResolver {
  constructor(@InjectServing(words) private readonly counter: ServingOf<typeof words>) {}

  @Query(() => [Text])
  texts(@Args('texts', { type: () => [String] }) texts: string[]): Promise<Text[]> {
    // The rows of one query, and of other queries at the same time, share batches.
    return Promise.all(
      texts.map(async (text) => ({ text, words: await this.counter.batchedRun(text) })),
    );
  }
}
// #endregion

// #region websocket
@WebSocketGateway({ path: '/words' })
export class WordsGateway {
  constructor(@InjectServing(words) private readonly counter: ServingOf<typeof words>) {}

  @SubscribeMessage('count')
  async count(@MessageBody() text: string) {
    return { event: 'counted', data: await this.counter.batchedRun(text) };
  }
}
// #endregion

@Controller('texts')
export class TextsController {
  constructor(private readonly servings: ServingService) {}

  /** Sends each result as soon as it is there. Closing the page cancels the rest. */
  @Sse(':texts')
  stream(@Param('texts') texts: string): Observable<{ data: unknown }> {
    return this.servings
      .stream(words, texts)
      .pipe(map(({ output }) => ({ data: { words: output } })));
  }
}

// #region config
@Module({
  imports: [
    ConfigModule.forRoot(),
    ServingModule.forRootAsync({
      imports: [ConfigModule],
      inject: [ConfigService],
      // The names are needed before the factory runs: they make the servings injectable.
      names: ['words'],
      useFactory: (config: ConfigService) => ({
        servings: [{ ...words, batchSize: Number(config.get('WORDS_BATCH_SIZE', 32)) }],
      }),
    }),
  ],
})
export class ConfiguredModule {}
// #endregion

@Controller('batched')
class BatchedController {
  @Post(':text')
  @Batched({ batchSize: 8 })
  count(@Param('text') texts: string[]): number[] {
    return texts.map((text) => text.length);
  }
}

/** Executes queries without an HTTP server of its own. */
class QueryDriver extends AbstractGraphQLDriver {
  schema: GraphQLSchema | undefined;

  async start({ schema }: { schema?: GraphQLSchema }): Promise<void> {
    this.schema = schema;
  }

  async stop(): Promise<void> {}
}

describe('The recipes of the manual', () => {
  let app: INestApplication | undefined;

  afterEach(async () => {
    delete process.env.WORDS_BATCH_SIZE;
    await app?.close();
  });

  it('A GraphQL query shares batches', async () => {
    const testing = await Test.createTestingModule({
      imports: [
        ServingModule.forRoot({ servings: [words] }),
        GraphQLModule.forRoot({ driver: QueryDriver, autoSchemaFile: true }),
      ],
      providers: [TextResolver],
    }).compile();
    app = await testing.createNestApplication({ logger: false }).init();
    const { schema } = app.get<GraphQLModule<QueryDriver>>(GraphQLModule).graphQlAdapter;
    const sizes: number[] = [];
    app
      .get(ServingService)
      .eventsOf('batch:end')
      .subscribe(({ rows }) => sizes.push(rows));

    const source = '{ texts(texts: ["one", "one two", "a b c"]) { words } }';
    const { data } = await graphql({ schema: schema!, source });

    expect(data).toMatchObject({ texts: [{ words: 1 }, { words: 2 }, { words: 3 }] });
    expect(sizes).toEqual([3]);
  });

  it('A WebSocket gateway answers its messages', async () => {
    const testing = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [words] })],
      providers: [WordsGateway],
    }).compile();
    app = testing.createNestApplication({ logger: false });
    app.useWebSocketAdapter(new WsAdapter(app));
    await app.listen(0, '127.0.0.1');

    const socket = new WebSocket(`${(await app.getUrl()).replace('http', 'ws')}/words`);
    const answer = await new Promise((resolve, reject) => {
      socket.once('error', reject);
      socket.once('message', (data: Buffer) => resolve(JSON.parse(data.toString())));
      socket.once('open', () => socket.send(JSON.stringify({ event: 'count', data: 'one two' })));
    });
    socket.close();

    expect(answer).toEqual({ event: 'counted', data: 2 });
  });

  it('Server-sent events carry the outputs of a stream', async () => {
    const testing = await Test.createTestingModule({
      imports: [ServingModule.forRoot({ servings: [words] })],
      controllers: [TextsController],
    }).compile();
    app = testing.createNestApplication({ logger: false });
    await app.listen(0, '127.0.0.1');

    const response = await fetch(`${await app.getUrl()}/texts/one%20two`);
    expect(await response.text()).toContain('data: {"words":2}');
  });

  it('Options come from the configuration', async () => {
    process.env.WORDS_BATCH_SIZE = '7';
    const testing = await Test.createTestingModule({ imports: [ConfiguredModule] }).compile();
    app = await testing.createNestApplication({ logger: false }).init();

    const service = app.get(ServingService);
    const sizes: number[] = [];
    service.eventsOf('batch:end').subscribe(({ rows }) => sizes.push(rows));
    await Promise.all(Array.from({ length: 20 }, () => service.batchedRun('words', 'one two')));
    expect(sizes).toEqual([7, 7, 6]);
  });

  it('The log goes to pino', async () => {
    const lines: string[] = [];
    const stream = { write: (line: string) => void lines.push(line) };
    const testing = await Test.createTestingModule({
      // #region pino
      imports: [
        LoggerModule.forRoot({ pinoHttp: { stream } }),
        ServingModule.forRoot({ servings: [words] }),
      ],
      // #endregion
      controllers: [BatchedController],
    }).compile();
    app = testing.createNestApplication({ bufferLogs: true });
    // #region pino-use
    app.useLogger(app.get(Logger));
    // #endregion
    await app.listen(0, '127.0.0.1');

    expect(lines.map((line) => JSON.parse(line) as { context?: string })).toContainEqual(
      expect.objectContaining({ context: 'Serving' }),
    );
  });
});
