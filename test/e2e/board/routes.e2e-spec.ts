import { describe, expect, it } from '@jest/globals';
import { Injectable, Module, type ModuleMetadata, type NestInterceptor } from '@nestjs/common';
import { DocumentBuilder, SwaggerModule } from '@nestjs/swagger';
import {
  defineServing,
  ServingModule,
  type ServingDefinition,
  ServingService,
} from 'nestjs-serving';
import { ServingBoardModule, type ServingBoardOptions } from 'nestjs-serving/board';
import { ServingClusterModule, MemoryNetwork } from 'nestjs-serving/distribution';
import { map } from 'rxjs';
import { describeOnPlatforms, type Reply } from '../../fixtures/partitions/platforms.js';
import { KeyGuard } from '../../fixtures/serving/board-servings.js';
import { boot } from '../../fixtures/serving/text-servings.js';

const lengths = defineServing({
  name: 'lengths',
  model: { useFactory: () => (texts: string[]) => texts.map((text) => text.length) },
});
const root = ServingModule.forRoot({ servings: [lengths] });
const CHANGE = { 'x-serving-board': '1' };

const withBoard = (options: ServingBoardOptions & { path?: string }): ModuleMetadata => ({
  imports: [root, ServingBoardModule.forRoot(options)],
});
const open = withBoard({ guards: [] });
const changeable = withBoard({
  guards: [new KeyGuard('viewer')],
  changes: { guards: [new KeyGuard('operator')] },
});
const failure = (imports: ModuleMetadata['imports']): Promise<unknown> =>
  boot({ imports }).catch(String);
const baseOf = ({ body }: Reply): unknown => /<base href="([^"]*)"/.exec(String(body))?.[1];

@Injectable()
class Keys {
  readonly key: string = 'viewer';
}

@Injectable()
class InjectedGuard extends KeyGuard {
  constructor(keys: Keys) {
    super(keys.key);
  }
}
Reflect.defineMetadata('design:paramtypes', [Keys], InjectedGuard);

@Module({ providers: [Keys, InjectedGuard], exports: [Keys] })
class KeysModule {}

describeOnPlatforms('The routes of the board', (listen) => {
  it('[20.2] Guards protect the page, its files, the figures and the changes', async () => {
    const site = await listen(changeable);

    for (const path of ['', '/', '/board.js', '/uplot.css', '/api', '/nothing']) {
      expect((await site.get(`/servings${path}`)).status).toBe(403);
    }
    const body = { serving: 'lengths', change: 'pause' };
    expect((await site.post('/servings/changes', body, CHANGE)).status).toBe(403);
    expect((await site.get('/servings', { 'x-key': 'viewer' })).status).toBe(200);
    expect(site.app.get(ServingService).get('lengths').held).toBeUndefined();
  });

  it('[20.2] Guards of a factory are made with what the application provides', async () => {
    const board = ServingBoardModule.forRootAsync({
      path: 'admin/board',
      imports: [KeysModule],
      inject: [Keys],
      useFactory: (keys: Keys) => ({ guards: keys.key === '' ? [] : [InjectedGuard] }),
    });
    const site = await listen({ imports: [root, KeysModule, board] });

    expect((await site.get('/admin/board')).status).toBe(403);
    expect((await site.get('/admin/board', { 'x-key': 'viewer' })).status).toBe(200);
  });

  it('[20.3] Addresses of the page are relative, with and without a slash, a prefix and a query', async () => {
    const plain = await listen(open);
    const prefixed = await listen(withBoard({ guards: [], path: '/ops/board' }), {
      configure: (app) => app.setGlobalPrefix('v1'),
    });

    expect(baseOf(await plain.get('/servings'))).toBe('./servings/');
    expect(baseOf(await plain.get('/servings/'))).toBe('./');
    expect(baseOf(await plain.get('/servings?a=b/'))).toBe('./servings/');
    expect(baseOf(await prefixed.get('/v1/ops/board'))).toBe('./board/');
    expect(baseOf(await prefixed.get('/v1/ops/board/'))).toBe('./');
    expect((await prefixed.get('/v1/ops/board/board.js')).status).toBe(200);
    expect((await prefixed.get('/servings')).status).toBe(404);
  });

  it('[20.3] Files have a type and an ETag, and are sent once', async () => {
    const site = await listen(open);

    for (const [file, type] of [
      ['', 'text/html'],
      ['board.css', 'text/css'],
      ['board.js', 'text/javascript'],
      ['uplot.js', 'text/javascript'],
    ] as const) {
      const first = await site.get(`/servings/${file}`);
      const etag = first.headers.get('etag')!;
      expect(first.headers.get('content-type')).toContain(type);
      expect(first.headers.get('cache-control')).toBe('no-cache');
      expect(first.headers.get('x-content-type-options')).toBe('nosniff');
      expect(await site.get(`/servings/${file}`, { 'if-none-match': etag })).toMatchObject({
        status: 304,
        body: '',
      });
      expect((await site.get(`/servings/${file}`, { 'if-none-match': '"other"' })).status).toBe(
        200,
      );
    }
    for (const file of ['missing.js', '..%2Findex.js', 'index.html', '%2e%2e', 'constructor']) {
      expect((await site.get(`/servings/${file}`)).status).toBe(404);
    }
  });

  it('[20.3] The page needs no inline scripts or styles, and forbids them and frames', async () => {
    const site = await listen(open);
    const { headers, body } = await site.get('/servings');

    expect(headers.get('content-security-policy')).toMatch(
      /default-src 'none'.*frame-ancestors 'none'/,
    );
    expect(headers.get('content-security-policy')).not.toContain('unsafe');
    expect(body).not.toMatch(/<style|style=|<script(?![^>]*src=)|https?:/);
  });

  it('[20.4] The figures of servings come as JSON, whatever interceptors do with replies', async () => {
    const envelope: NestInterceptor = {
      intercept: (_, next) => next.handle().pipe(map((wrapped: unknown) => ({ wrapped }))),
    };
    const site = await listen(open, { configure: (app) => app.useGlobalInterceptors(envelope) });

    const { body } = await site.get('/servings/api?serving=lengths&since=-1');
    expect(body).toMatchObject({
      servings: [{ name: 'lengths', state: 'ready', isReady: true, queued: 0 }],
      changes: false,
      watchedSince: expect.any(Number),
      detail: {
        name: 'lengths',
        keys: [{ key: 'default', batchSize: 32, batchTimeout: 0 }],
        partitions: [{ state: 'up', restarts: 0 }],
        versions: [{ version: '1', role: 'active' }],
        batches: [],
      },
    });
  });

  it('[20.4] A poll with odd parameters gets the list alone', async () => {
    const site = await listen(open);
    for (const query of [
      '?serving=missing',
      '?serving=lengths&serving=x',
      '?serving[a]=b&since[]=1',
      '?since=NaN&serving=',
      `?since=1e999&serving=${'x'.repeat(4000)}`,
    ]) {
      const { status, body } = await site.get(`/servings/api${query}`);
      expect(status).toBe(200);
      expect(body).not.toHaveProperty('detail');
      expect(body).toMatchObject({ servings: [{ name: 'lengths' }] });
    }
  });

  it('[20.5] Without changes the board answers 405 to each, and changes nothing', async () => {
    const site = await listen(open);
    const reply = await site.post(
      '/servings/changes',
      { serving: 'lengths', change: 'drain' },
      CHANGE,
    );

    expect(reply.status).toBe(405);
    expect(site.app.get(ServingService).get('lengths').held).toBeUndefined();
    expect((await site.get('/servings/changes', CHANGE)).status).toBe(404);
  });

  it('[20.5] A change passes both guards and has a header that other sites cannot send', async () => {
    const site = await listen(changeable);
    const serving = site.app.get(ServingService).get('lengths');
    const change = { serving: 'lengths', change: 'pause' };
    const send = (headers: Record<string, string>) =>
      site.post('/servings/changes', change, headers);

    expect((await send({ ...CHANGE, 'x-key': 'viewer' })).status).toBe(403);
    expect(await send({ 'x-key': 'operator' })).toMatchObject({
      status: 403,
      body: { message: expect.stringContaining('x-serving-board') },
    });
    expect(serving.held).toBeUndefined();
    expect(await send({ ...CHANGE, 'x-key': 'operator' })).toMatchObject({
      status: 200,
      body: { changed: true },
    });
    expect(serving.held).toBe('paused');
  });

  it('[20.5] Each change does what its name says, and says why it cannot be made', async () => {
    const site = await listen(changeable);
    const serving = site.app.get(ServingService).get('lengths');
    const send = async (change: object) => {
      const reply = await site.post(
        '/servings/changes',
        { serving: 'lengths', ...change },
        { ...CHANGE, 'x-key': 'operator' },
      );
      return reply;
    };

    await send({ change: 'drain' });
    expect(serving.held).toBe('drained');
    await send({ change: 'resume' });
    expect(serving.held).toBeUndefined();
    await send({ change: 'batchSize', value: 7 });
    await send({ change: 'batchTimeout', value: 3, key: 'default' });
    expect(serving.keys()).toEqual([{ key: 'default', batchSize: 7, batchTimeout: 3 }]);
    for (const [change, status, message] of [
      [{ change: 'reload' }, 409, 'runs code of the application'],
      [{ change: 'promote', version: '9' }, 404, 'has no version "9"; it has "1"'],
      [{ change: 'rollback', version: '1' }, 409, 'is the active one'],
      [{ change: 'batchSize', value: 0 }, 409, 'option "batchSize" is 0'],
      [{ change: 'batchSize' }, 400, 'has no "value"'],
      [{ change: 'batchSize', value: 2, key: 'x' }, 409, 'has no key "x"'],
      [{ change: 'constructor' }, 400, 'allowed is pause, drain'],
      [{ change: 'pause', serving: 'missing' }, 404, 'There is no serving "missing"'],
      [{ change: 'pause', serving: 7 }, 400, 'option "serving" is 7'],
      [{ change: 'pause', more: 1 }, 400, 'unknown option "more"'],
    ] as const) {
      expect({ change, ...(await send(change)) }).toMatchObject({
        status,
        body: { message: expect.stringContaining(message) },
      });
    }
    expect(serving.keys()).toEqual([{ key: 'default', batchSize: 7, batchTimeout: 3 }]);
  });

  it('[20.13] The figures of a serving have the nodes of the cluster that have it', async () => {
    const network = new MemoryNetwork();
    const onNode = (nodeId: string, servings: ServingDefinition[]): ModuleMetadata => ({
      imports: [
        ServingModule.forRoot({ servings }),
        ServingClusterModule.forRoot({ transport: network.transport(), nodeId }),
        ServingBoardModule.forRoot({ guards: [] }),
      ],
    });
    const other = { ...lengths, name: 'other' };
    const site = await listen(onNode('a', [lengths, other]));
    await listen(onNode('b', [{ ...lengths, distribution: { weight: 0.5 } }]));
    const nodesOf = async (serving: string): Promise<unknown> => {
      const { body } = await site.get(`/servings/api?serving=${serving}&since=-1`);
      return (body as { detail: { nodes: unknown } }).detail.nodes;
    };

    const own = { id: 'a', isSelf: true, state: 'up', isReady: true, weight: 1, partitions: 1 };
    expect(await nodesOf('lengths')).toEqual([
      expect.objectContaining(own),
      expect.objectContaining({ id: 'b', isSelf: false, state: 'up', weight: 0.5, queued: 0 }),
    ]);
    expect(await nodesOf('other')).toEqual([expect.objectContaining(own)]);
    expect(JSON.stringify(await nodesOf('lengths'))).not.toContain('signature');
  });

  it('[20.13] Without a cluster there are no nodes', async () => {
    const site = await listen(open);
    const { body } = await site.get('/servings/api?serving=lengths&since=-1');
    expect(body).toHaveProperty('detail.name', 'lengths');
    expect(body).not.toHaveProperty('detail.nodes');
  });

  it('[20.3] OpenAPI documents leave the board out', async () => {
    const site = await listen(open);
    const { paths } = SwaggerModule.createDocument(site.app, new DocumentBuilder().build());
    expect(paths).toEqual({});
  });
});

describe('The wiring of the board', () => {
  it('[20.6] Wrong options, and an application without servings, fail the boot', async () => {
    const invalid = (options: object) =>
      failure([root, ServingBoardModule.forRoot(options as ServingBoardOptions)]);

    expect(await invalid({})).toContain(
      'option "guards" is undefined; allowed is a list of guards',
    );
    expect(await invalid({ guards: [7] })).toContain('option "guards" is [ 7 ]');
    expect(await invalid({ guards: [], changes: {} })).toContain('option "changes.guards"');
    expect(await invalid({ guards: [], changes: { guards: [] } })).toContain('at least one guard');
    expect(await invalid({ guards: [], minutes: 0 })).toContain('option "minutes" is 0');
    expect(await invalid({ guards: [], change: {} })).toContain('did you mean "changes"');
    expect(() => ServingBoardModule.forRoot({ guards: [], path: 'a b' })).toThrow(
      'option "path" is "a b"',
    );
    expect(await failure([ServingBoardModule.forRoot({ guards: [] })])).toContain(
      'add ServingModule.forRoot',
    );
  });
});
