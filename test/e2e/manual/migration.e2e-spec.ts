// #region before-imports
import { Body, Controller, Injectable, type OnModuleInit, Post, Scope } from '@nestjs/common';
import DataLoader from 'dataloader';
import * as ort from 'onnxruntime-node';
// #endregion
import { Module, type INestApplication } from '@nestjs/common';
// #region after-imports
import { Batched, defineServing, ServingModule, ServingService, Tensor } from 'nestjs-serving';
// #endregion
import { afterEach, describe, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { asCaller } from 'nestjs-serving';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { inFolder } from '../../fixtures/serving/in-folder.js';

inFolder('sample/01-digits/model');

const hasPython = spawnSync('python3', ['--version']).status === 0;
const pythonMissing = hasPython ? undefined : 'The other server is in Python: apt install python3';

// #region session-before
@Controller('before')
export class OneByOneController implements OnModuleInit {
  private session!: ort.InferenceSession;

  async onModuleInit(): Promise<void> {
    this.session = await ort.InferenceSession.create('digits.onnx');
  }

  @Post()
  async read(@Body() { pixels }: { pixels: number[] }) {
    const image = new ort.Tensor('float32', Float32Array.from(pixels), [1, 784]);
    // One row per run, and the event loop waits for it.
    const { probabilities } = await this.session.run({ image });
    return { digit: indexOfLargest(probabilities!) };
  }
}
// #endregion

// #region session-after
export const digits = defineServing({
  name: 'digits',
  model: 'digits.onnx',
  preprocess: (pixels: number[]) => ({
    batch: { image: new Tensor('float32', Float32Array.from(pixels), [1, 784]) },
  }),
  postprocess: ({ probabilities }: { probabilities: Tensor }) => indexOfLargest(probabilities),
});

@Controller('after')
export class DigitsController {
  constructor(private readonly servings: ServingService) {}

  @Post()
  async read(@Body() { pixels }: { pixels: number[] }) {
    return { digit: await this.servings.batchedRun(digits, pixels) };
  }
}
// #endregion

function indexOfLargest({ data }: Tensor): number {
  const values = [...(data as Float32Array)];
  return values.indexOf(Math.max(...values));
}

@Injectable()
class UserRepository {
  readonly queries: (readonly number[])[] = [];

  async byIds(ids: readonly number[]): Promise<(string | Error)[]> {
    this.queries.push(ids);
    return ids.map((id) => (id > 0 ? `user ${id}` : new Error(`No user ${id}`)));
  }
}

// #region loader-before
@Injectable({ scope: Scope.REQUEST })
export class UserLoader {
  private readonly loader = new DataLoader((ids: readonly number[]) => this.users.byIds(ids));

  constructor(private readonly users: UserRepository) {}

  byId(id: number): Promise<string> {
    return this.loader.load(id);
  }
}
// #endregion

// #region loader-after
@Injectable()
export class Users {
  constructor(private readonly users: UserRepository) {}

  @Batched({ batchSize: 100 })
  byId(ids: number[]): Promise<(string | Error)[]> {
    return this.users.byIds(ids);
  }
}
// #endregion

// #region python-route
// Keeps the address and the JSON of a Python server: {"input": [...]} in, {"index": 7} out.
@Controller()
export class PredictController {
  constructor(private readonly servings: ServingService) {}

  @Post('predict')
  async predict(@Body() { input }: { input: number[] }) {
    return { index: await this.servings.batchedRun(digits, input) };
  }
}
// #endregion

// #region python-client
// One request to the Python server for many callers.
@Injectable()
export class Embedder {
  @Batched({ batchSize: 32, batchTimeout: 5 })
  async embed(texts: string[]): Promise<number[][]> {
    const response = await fetch(`${process.env['EMBEDDER_URL']}/embed`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ texts }),
    });
    if (!response.ok) {
      throw new Error(`The embedder answered with status ${response.status}`);
    }
    const { vectors } = (await response.json()) as { vectors: number[][] };
    return vectors;
  }
}
// #endregion

@Module({
  imports: [ServingModule.forRoot({ servings: [digits] })],
  controllers: [OneByOneController, DigitsController, PredictController],
  providers: [UserRepository, UserLoader, Users, Embedder],
})
class AppModule {}

describe('The manual on moving to this package', () => {
  let app: INestApplication;

  afterEach(() => app.close());

  async function start(): Promise<void> {
    app = (
      await Test.createTestingModule({ imports: [AppModule] }).compile()
    ).createNestApplication({ logger: ['error'] });
    await app.listen(0, '127.0.0.1');
  }

  async function post(path: string, body: object): Promise<unknown> {
    const response = await fetch(`${await app.getUrl()}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    });
    return response.json();
  }

  it('[1.3] A serving answers like the session that it replaces, also behind the route of a Python server', async () => {
    await start();
    const images = Array.from({ length: 20 }, (_, image) =>
      Array.from({ length: 784 }, (__, pixel) => ((pixel * (image + 3)) % 17) / 17),
    );

    const before = await Promise.all(images.map((pixels) => post('/before', { pixels })));
    const after = await Promise.all(images.map((pixels) => post('/after', { pixels })));
    const predicted = await Promise.all(images.map((input) => post('/predict', { input })));

    expect(new Set(before.map((reply) => JSON.stringify(reply))).size).toBeGreaterThan(1);
    expect(after).toEqual(before);
    expect(predicted).toEqual(
      before.map((reply) => ({ index: (reply as { digit: number }).digit })),
    );
  });

  it('[10.2] A batched method makes one query and fails one key alone, like the data loader that it replaces', async () => {
    await start();
    const repository = app.get(UserRepository);
    const loader = await app.resolve(UserLoader);
    const users = asCaller(app.get(Users));

    const loaded = await Promise.allSettled([1, -2, 3].map((id) => loader.byId(id)));
    const batched = await Promise.allSettled([1, -2, 3].map((id) => users.byId(id)));

    expect(batched).toEqual(loaded);
    expect(loaded.map(({ status }) => status)).toEqual(['fulfilled', 'rejected', 'fulfilled']);
    expect(repository.queries).toEqual([
      [1, -2, 3],
      [1, -2, 3],
    ]);
  });

  describeUnless(pythonMissing, 'In front of a Python server', () => {
    it('[10.2] A batched method sends one request to a Python server for many callers', async () => {
      const script = fileURLToPath(new URL('embedder.py', import.meta.url));
      const python = spawn('python3', [script], { stdio: ['ignore', 'pipe', 'inherit'] });
      const [port] = (await once(python.stdout, 'data')) as [Buffer];
      process.env['EMBEDDER_URL'] = `http://127.0.0.1:${port.toString().trim()}`;
      await start();

      const embedder = asCaller(app.get(Embedder));
      const vectors = await Promise.all(['a', 'bc', 'def'].map((text) => embedder.embed(text)));

      expect(vectors).toEqual([
        [1, 3],
        [2, 3],
        [3, 3],
      ]);
      python.kill();
      await once(python, 'exit');
    });
  });
});
