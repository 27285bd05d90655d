import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { chmod, cp, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parse, parseAllDocuments } from 'yaml';
import type { VersionStatus } from 'nestjs-serving';
import {
  buildStages,
  giveToUser,
  nonRoot,
  run,
  stagesOf,
} from '../../fixtures/deployment/dockerfile.js';
import { ImageProcess, namespaceMissing } from '../../fixtures/deployment/image-process.js';
import { faultsOf, inferenceService } from '../../fixtures/deployment/inference-service.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { missing } from '../../fixtures/http/server-process.js';
import { InferenceGrpcClient } from '../../fixtures/http/inference-grpc.js';
import {
  prometheusMissing,
  promtoolMissing,
  PrometheusServer,
} from '../../fixtures/prometheus/prometheus-server.js';
import { blocksOf } from '../starters/starter.js';
import { registryMissing } from '../../fixtures/registry.js';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const sample = join(root, 'sample/07-production');
const read = (file: string) => readFileSync(join(sample, file), 'utf8');

/** The key of the README. */
const acme = 'a-key-of-16-characters';
const globex = 'globex-key-000000001';
const operator = 'another-key-of-16';
const tenantKeys = Array.from({ length: 100 }, (_, i) => `key-of-tenant-number-${i}`);
const API_KEYS = [
  `acme:${acme}`,
  `globex:${globex}`,
  `operator:${operator}`,
  ...tenantKeys.map((key, i) => `tenant-${i}:${key}`),
].join(', ');

interface Answer {
  readonly topic: string;
  readonly confidence: number;
  readonly example: string;
}

const ticket = {
  subject: 'Still waiting',
  text: 'I ordered two weeks ago and nothing has arrived.',
};
const longTickets = (count: number) =>
  Array.from({ length: count }, (_, i) => ({ subject: `${i}`, text: 'where is it? '.repeat(300) }));

/** The instructions of the stage that runs. */
const instructions = stagesOf(read('Dockerfile')).at(-1)!.instructions;
const valueOf = (name: string) => instructions.find((each) => each.name === name)!.value;
const command = JSON.parse(valueOf('CMD')) as string[];
const healthcheck = JSON.parse(/CMD (.*)$/.exec(valueOf('HEALTHCHECK'))![1]!) as string[];

const resourcesOf = (file: string) =>
  parseAllDocuments(read(file)).map((document) => {
    expect(document.errors).toEqual([]);
    return document.toJS() as { kind: string };
  });
const kindsOf = (each: readonly { kind: string }[]) =>
  new Map(each.map((resource) => [resource.kind, resource] as const));
const resources = resourcesOf('kubernetes.yaml');
const kinds = kindsOf(resources);
const kubernetesServices = resources.filter(
  ({ kind }) => kind === 'Service',
) as unknown as Service[];
const { template, selector } = (kinds.get('Deployment') as unknown as Deployment).spec;
const [container] = template.spec.containers as [Container];
const portOf = (name: string) => container.ports.find((port) => port.name === name)!;

describeUnless(
  registryMissing ?? namespaceMissing ?? missing('curl'),
  'The sample of production',
  () => {
    let folder: string;
    let image: string;
    let desk: ImageProcess;

    /** A copy with the packed package, as it is with the published one elsewhere. */
    beforeAll(async () => {
      folder = await mkdtemp(join(tmpdir(), 'ticket-desk-'));
      await chmod(folder, 0o755);
      await giveToUser(folder);
      const context = join(folder, 'context/app');
      const files = execFileSync(
        'git',
        ['ls-files', '--cached', '--others', '--exclude-standard'],
        {
          cwd: sample,
          encoding: 'utf8',
        },
      );
      for (const file of files.trim().split('\n')) {
        await cp(join(sample, file), join(context, file));
      }
      await giveToUser(context);
      await giveToUser(join(context, 'package.json'));
      execFileSync('npm', ['pack', '--ignore-scripts', '--pack-destination', folder], {
        cwd: root,
      });
      const [tarball] = (await readdir(folder)).filter((name) => name.endsWith('.tgz'));
      await run('npm', ['install', '--package-lock-only', join(folder, tarball!)], context);

      image = await buildStages(context, folder);
      // As if a volume had brought other versions: one with other weights, and one of another model.
      const june = await readFile(join(image, '.cache/june.onnx'));
      await writeFile(join(image, 'models/july.onnx'), withOtherWeights(june));
      await cp(join(root, 'sample/01-digits/model/digits.onnx'), join(image, 'models/digits.onnx'));
      // As with `read_only` and `readOnlyRootFilesystem`. Docker copies as root.
      execFileSync('chmod', ['-R', 'a-w', image]);
      if (nonRoot.uid !== undefined) {
        execFileSync('chown', ['-R', 'root:root', image]);
      }
      desk = await start({ CALL_TIMEOUT: '600000' });
    });

    afterAll(async () => {
      await desk?.stop();
      execFileSync('chmod', ['-R', 'u+w', image]);
      await rm(folder, { recursive: true, force: true });
    });

    const start = (environment: NodeJS.ProcessEnv = {}) =>
      ImageProcess.start(image, command, { NODE_ENV: 'production', API_KEYS, ...environment });

    const post = (path: string, body: object, { at = desk, key = acme } = {}) =>
      fetch(at.url + path, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'x-api-key': key },
        body: JSON.stringify(body),
      });
    const scrape = async () => (await fetch(desk.metricsUrl)).text();
    const untilQueued = async (tickets: number) => {
      while (queuedIn(await scrape()) < tickets) {
        // They are on their way.
      }
    };

    it.each([
      [{ subject: 'Wrong amount', text: 'You took the money from my card two times.' }, 'billing'],
      [
        { subject: 'Shoes', text: 'They are too small, I want my money back.' },
        'refunds and returns',
      ],
      [ticket, 'delivery'],
      [{ subject: 'Password', text: 'I cannot sign in any more.' }, 'account and login'],
      [
        { subject: 'Help', text: 'Since the update the app closes by itself.' },
        'technical problem',
      ],
      [{ subject: 'Question', text: 'Do you also have it in green?' }, 'product question'],
    ])('A ticket gets the topic of its meaning: %j is %s', async (body, topic) => {
      const response = await post('/tickets/classify', body);

      expect(response.status).toBe(200);
      const answer = (await response.json()) as Answer;
      expect(answer).toEqual({
        topic,
        confidence: expect.any(Number),
        example: expect.any(String),
      });
      expect(answer.confidence).toBeGreaterThan(0.3);
      expect(answer.confidence).toBeLessThanOrEqual(1);
    });

    it('The request of the README gets the answer of the README', async () => {
      const [curl] = blocksOf('sample/07-production/README.md', 'sh', 'curl') as [string];
      const [json] = blocksOf('sample/07-production/README.md', 'json', 'topic') as [string];
      const printed = await run('bash', ['-ec', curl.replace('localhost:3000', desk.url)], image);

      const { confidence, ...answer } = JSON.parse(json) as Answer;
      expect(JSON.parse(printed)).toEqual({
        ...answer,
        confidence: expect.closeTo(confidence, 1),
      });
    });

    it('A hundred tickets get their topics in their order, in shared batches', async () => {
      const invoice = { subject: 'Invoice', text: 'Please send me an invoice with a VAT number.' };
      const tickets = Array.from({ length: 100 }, (_, i) => (i % 3 === 0 ? invoice : ticket));
      const before = batchesIn(await scrape());
      const response = await post('/tickets/classify/many', { tickets });

      const answers = (await response.json()) as Answer[];
      expect(answers.map(({ topic }) => topic)).toEqual(
        tickets.map((each) => (each === invoice ? 'billing' : 'delivery')),
      );
      // A busy machine makes smaller ones.
      expect(batchesIn(await scrape()) - before).toBeLessThan(50);
    });

    it.each([[''], ['another-key-of-16-characters'], [acme.slice(0, -1)]])(
      'A request with the API key "%s" is answered with 401',
      async (key) => {
        const response = await post('/tickets/classify', ticket, { key });

        expect(response.status).toBe(401);
        await expect(response.json()).resolves.toMatchObject({
          message: 'Send your API key in the header x-api-key',
        });
      },
    );

    it.each([
      ['/tickets/classify', {}, 'subject must be a string'],
      ['/tickets/classify', { ...ticket, subject: '' }, 'subject should not be empty'],
      ['/tickets/classify', { ...ticket, text: 'x'.repeat(5001) }, 'text must be shorter than'],
      ['/tickets/classify/many', { tickets: [] }, 'tickets should not be empty'],
      ['/tickets/classify/many', { tickets: [{}] }, 'tickets.0.subject must be a string'],
      ['/tickets/classify/many', { tickets: longTickets(101) }, 'no more than 100 elements'],
    ])('An invalid body for %s is answered with 400 (%#)', async (path, body, message) => {
      const response = await post(path, body);

      expect(response.status).toBe(400);
      const { message: messages } = (await response.json()) as { message: string[] };
      expect(messages.join('; ')).toContain(message);
    });

    it('A full queue is answered with 503 and Retry-After, without an error in the log, and has room for the next ticket', async () => {
      const small = await start({ QUEUE_MAX_ROWS: '40' });
      try {
        const many = { tickets: longTickets(100) };
        // From the run of a batch of its length the queue learns how long others take.
        await post('/tickets/classify', many.tickets[0]!, { at: small });
        const response = await post('/tickets/classify/many', many, { at: small });

        expect(response.status).toBe(503);
        await expect(response.json()).resolves.toEqual({
          statusCode: 503,
          code: 'SERVING_OVERLOADED',
        });
        expect(Number(response.headers.get('retry-after'))).toBeGreaterThanOrEqual(1);
        const next = await post('/tickets/classify', ticket, { at: small });
        expect(next.status).toBe(200);
        expect(small.log.filter(({ level }) => level === 'error')).toEqual([]);
      } finally {
        await small.stop();
      }
    });

    it('A call that takes longer than CALL_TIMEOUT is answered with 504', async () => {
      const hasty = await start({ CALL_TIMEOUT: '100' });
      try {
        await changeOnBoard(hasty, 'pause');
        const response = await post('/tickets/classify', ticket, { at: hasty });

        expect(response.status).toBe(504);
        await expect(response.json()).resolves.toEqual({
          statusCode: 504,
          code: 'SERVING_DEADLINE_EXCEEDED',
        });
      } finally {
        await hasty.stop();
      }
    });

    it('A tenant with many waiting tickets does not delay the ticket of another tenant', async () => {
      const order: string[] = [];
      const classify = async (body: object, key: string) => {
        await post('/tickets/classify', body, { key });
        order.push(key);
      };
      await changeOnBoard(desk, 'pause');
      const crowd = longTickets(150).map((each) => classify(each, acme));
      await untilQueued(150);
      const other = classify(longTickets(1)[0]!, globex);
      await untilQueued(151);
      await changeOnBoard(desk, 'resume');
      await Promise.all([...crowd, other]);

      // In the order of arrival, the 150 tickets of the crowd would have been answered first.
      expect(order.indexOf(globex)).toBeLessThan(100);
    });

    it('The boot fails with advice when there are no API keys', async () => {
      await expect(start({ API_KEYS: '' })).rejects.toThrow(
        'Set API_KEYS to tenant:key,tenant:key, with keys of 16 characters or more',
      );
    });

    describe('through the Open Inference Protocol', () => {
      let grpc: InferenceGrpcClient;

      beforeAll(async () => (grpc = await InferenceGrpcClient.connect(desk.grpcAddress)));
      afterAll(() => grpc.close());

      it('offers the embeddings with their declared tensors, by HTTP and gRPC', async () => {
        const response = await fetch(`${desk.url}/v2/models/embedder`, {
          headers: { 'x-api-key': acme },
        });
        const byGrpc = await grpc.call(
          'ModelMetadata',
          { name: 'embedder' },
          { 'x-api-key': acme },
        );

        const tensors = {
          inputs: [{ name: 'text', datatype: 'BYTES' }],
          outputs: [{ name: 'vector', datatype: 'FP32' }],
        };
        await expect(response.json()).resolves.toMatchObject(tensors);
        expect(byGrpc).toMatchObject(tensors);
      });

      it('gives a text the same unit vector by HTTP and gRPC', async () => {
        const byHttp = await embeddingOf('Where is it?', desk, acme);
        const byGrpc = await grpcEmbeddingsOf(['Where is it?'], grpc, acme);

        expect(byHttp).toHaveLength(384);
        expect(Math.hypot(...byHttp)).toBeCloseTo(1, 4);
        expect(byGrpc).toEqual(Float32Array.from(byHttp));
      });

      it('refuses calls without an API key at both doors, and lets probes pass', async () => {
        const refused = await post('/v2/models/embedder/infer', {}, { key: '' });
        expect(refused.status).toBe(401);
        await expect(grpc.call('ModelMetadata', { name: 'embedder' })).rejects.toMatchObject({
          code: 16,
          details: 'Send your API key in the header x-api-key',
        });

        const ready = await fetch(`${desk.url}/v2/health/ready`);
        expect(ready.status).toBe(200);
        await expect(grpc.call('ServerReady')).resolves.toEqual({ ready: true });
      });
    });

    describe('with a canary', () => {
      let canaried: ImageProcess;
      let grpc: InferenceGrpcClient;
      const vectors = { june: '', july: '' };

      beforeAll(async () => {
        canaried = await start({ CANARY: 'july:20', CALL_TIMEOUT: '600000' });
        grpc = await InferenceGrpcClient.connect(canaried.grpcAddress);
        vectors.june = String(await embeddingOf('hello', desk, acme));
      });

      afterAll(async () => {
        grpc?.close();
        await canaried?.stop();
      });

      /** The version that answers a tenant. One call at a time, since batches change vectors a little. */
      const versionOf = async (key: string) => {
        const vector = String(await embeddingOf('hello', canaried, key));
        return vector === vectors.june ? 'june' : 'july';
      };
      const versionsOfTenants = async () => {
        const versions: string[] = [];
        for (const key of tenantKeys) {
          versions.push(await versionOf(key));
        }
        return versions;
      };
      const operate = (path: string, body: object = {}, key = operator) =>
        post(`/operator/versions${path}`, body, { at: canaried, key });
      const roles = async () =>
        (await versionsAt(canaried))
          .filter(({ role }) => role !== 'draining')
          .map(({ version, role }) => `${version} ${role}`);

      it('gives the canary its share of the tenants, and each tenant always the same version', async () => {
        await expect(roles()).resolves.toEqual(['june active', 'july canary']);
        const versions = await versionsOfTenants();

        const canaries = versions.filter((version) => version === 'july');
        expect(canaries.length).toBeGreaterThan(8);
        expect(canaries.length).toBeLessThan(35);
        await expect(versionsOfTenants()).resolves.toEqual(versions);
        // The gRPC door and another pod agree.
        for (const key of [
          tenantKeys[versions.indexOf('june')]!,
          tenantKeys[versions.indexOf('july')]!,
        ]) {
          const byHttp = await embeddingOf('hello', canaried, key);
          await expect(grpcEmbeddingsOf(['hello'], grpc, key)).resolves.toEqual(
            Float32Array.from(byHttp),
          );
        }
      });

      it('classifies the tickets of the tenants of both versions', async () => {
        const answers = await Promise.all(
          tenantKeys.map(async (key) => {
            const response = await post('/tickets/classify', ticket, { at: canaried, key });
            return (await response.json()) as Answer;
          }),
        );
        expect(new Set(answers.map(({ topic }) => topic))).toEqual(new Set(['delivery']));
      });

      describeUnless(prometheusMissing, 'with Prometheus', () => {
        let prometheus: PrometheusServer;
        beforeAll(async () => {
          const port = Number(new URL(canaried.metricsUrl).port);
          prometheus = await PrometheusServer.start(port, join(sample, 'prometheus-alerts.yaml'));
        });
        afterAll(() => prometheus.end());

        it('has the calls of each version, as the operator sees them', async () => {
          const versions = await versionsAt(canaried);
          const query = 'sum by (serving_version) (serving_call_duration_count{error_type=""})';
          let samples = await prometheus.query(query);
          while (samples.length === 0) {
            await delay(200);
            samples = await prometheus.query(query);
          }
          const counted = samples.map(({ metric, value }) => [metric.serving_version, value]);
          expect(Object.fromEntries(counted)).toEqual(
            Object.fromEntries(versions.map((each) => [each.version, each.counters.answered])),
          );
          const rules = await prometheus.rules();
          expect(rules.map(({ name }) => name)).toContain('ServingCanaryFails');
        });
      });

      it('shows the board to a browser that signs in with the key of the operator', async () => {
        const stranger = await board(canaried, 'a-key-of-16-characters');
        expect(stranger.status).toBe(401);
        expect(stranger.headers.get('www-authenticate')).toBe('Basic realm="Servings"');
        const page = await board(canaried, operator);
        expect(page.headers.get('content-type')).toContain('text/html');
        expect(await (await board(canaried, operator, 'api')).json()).toMatchObject({
          servings: [{ name: 'embedder' }],
        });
      });

      it('lets the operator alone change versions', async () => {
        const answers = await Promise.all([
          operate('/july/promote', {}, acme),
          operate('/july/rollback', {}, ''),
          operate('', { version: 'june', percent: 10 }, globex),
        ]);
        expect(answers.map(({ status }) => status)).toEqual([403, 401, 403]);
        await expect(roles()).resolves.toEqual(['june active', 'july canary']);
      });

      it.each([
        ['', { version: '../.cache/june', percent: 10 }, 400, 'version must match'],
        ['', { version: 'august', percent: 101 }, 400, 'percent must not be greater than 100'],
        ['', { version: 'august', percent: 10 }, 422, 'has no ../models/'],
        ['', { version: 'july', percent: 10 }, 422, 'has a version "july" already'],
        ['', { version: 'digits', percent: 10 }, 422, 'its model has image'],
        ['/august/promote', {}, 404, 'There is no canary "august"; there are: july'],
        ['/june/rollback', {}, 404, 'There is no canary "june"; there are: july'],
      ])('tells the operator why %s %j is refused: %i', async (path, body, status, message) => {
        const response = await operate(path, body);

        expect(response.status).toBe(status);
        expect(await response.text()).toContain(JSON.stringify(message).slice(1, -1));
        await expect(roles()).resolves.toEqual(['june active', 'july canary']);
      });

      it('gives the version before all tenants after a rollback, and the canary all after a promotion', async () => {
        expect((await operate('/july/rollback')).status).toBe(200);
        await expect(roles()).resolves.toEqual(['june active']);
        expect(new Set(await versionsOfTenants())).toEqual(new Set(['june']));

        expect((await operate('', { version: 'july', percent: 0 })).status).toBe(200);
        expect(new Set(await versionsOfTenants())).toEqual(new Set(['june']));
        expect((await operate('/july/promote')).status).toBe(200);
        await expect(roles()).resolves.toEqual(['july active']);
        expect(new Set(await versionsOfTenants())).toEqual(new Set(['july']));
      });

      it('is loaded and promoted by the commands of the README, and the protocol answers its command', async () => {
        const commands = blocksOf('sample/07-production/README.md', 'sh', 'curl');
        const [infer, rollout] = commands.filter((each) => /v2|operator/.test(each));
        const own = await start();
        try {
          const runHere = (text: string) =>
            run('bash', ['-ec', text.replaceAll('localhost:3000', own.url)], image);
          const { outputs } = JSON.parse(await runHere(infer!)) as {
            outputs: [{ shape: number[] }];
          };
          expect(outputs[0].shape).toEqual([1, 384]);
          // The image is read-only, and has the file.
          expect(rollout).toContain('cp .cache/june.onnx models/july.onnx\n');
          await runHere(rollout!.replace(/^cp .*$/m, ''));
          await expect(versionsAt(own)).resolves.toContainEqual(
            expect.objectContaining({ version: 'july', role: 'active' }),
          );
        } finally {
          await own.stop();
        }
      });

      it('fails the boot where the canary of its settings has no file, or CANARY is not one', async () => {
        await expect(start({ CANARY: 'august:10' })).rejects.toThrow('has no ../models/');
        await expect(start({ CANARY: 'july' })).rejects.toThrow(
          'Set CANARY to version:percent, such as july:10, not',
        );
      });
    });

    it('The OpenAPI document has both routes, their answers, Retry-After and the API key', async () => {
      const page = await fetch(`${desk.url}/docs`);
      expect(page.status).toBe(200);
      const { paths, components } = (await (await fetch(`${desk.url}/docs-json`)).json()) as {
        paths: Record<string, { post: { responses: object; security: object } }>;
        components: { schemas: object; securitySchemes: object };
      };
      for (const path of ['/tickets/classify', '/tickets/classify/many']) {
        const { responses, security } = paths[path]!.post;
        expect(Object.keys(responses)).toEqual(['200', '400', '401', '503', '504']);
        expect(responses).toMatchObject({ 503: { headers: { 'Retry-After': {} } } });
        expect(security).toEqual([{ 'x-api-key': [] }]);
      }
      expect(components.securitySchemes).toMatchObject({
        'x-api-key': { type: 'apiKey', in: 'header', name: 'x-api-key' },
      });
      expect(components.schemas).toMatchObject({
        TicketDto: { required: ['subject', 'text'] },
        TicketsDto: { properties: { tickets: { maxItems: 100 } } },
      });
    });

    it('The metrics come from ticket-desk, or from the service that OTEL_SERVICE_NAME names', async () => {
      const other = await start({ OTEL_SERVICE_NAME: 'help-desk' });
      try {
        const response = await fetch(other.metricsUrl);

        expect(await scrape()).toMatch(/^target_info\{.*service_name="ticket-desk".*\} 1$/m);
        expect(await response.text()).toMatch(/^target_info\{.*service_name="help-desk".*\} 1$/m);
      } finally {
        await other.stop();
      }
    });

    it('The log consists of JSON lines', () => {
      expect(desk.log.map(({ message }) => message)).toContain(
        'Nest application successfully started',
      );
    });

    describe('as a container', () => {
      it('runs as process 1 and not as root', () => {
        expect(desk.status('NSpid')).toMatch(/\t1$/);
        expect(desk.status('Uid')).not.toMatch(/^0\t/);
        // The user of the official images has the ID that kubernetes.yaml names.
        expect(valueOf('USER')).toBe('node');
        expect(template.spec.securityContext).toMatchObject({
          runAsNonRoot: true,
          runAsUser: 1000,
        });
      });

      it('runs its model natively, as a user that is not root, from a read-only file system', () => {
        expect(desk.log.map(({ message }) => message)).toContainEqual(
          expect.stringContaining('Serving "embedder" is ready: model on cpu, natively'),
        );
      });

      it('has all that the Dockerfile copies in the context of its build', () => {
        const sources = stagesOf(read('Dockerfile'))
          .flatMap((stage) => stage.instructions)
          .filter(({ name, value }) => name === 'COPY' && !value.startsWith('--from'))
          .flatMap(({ value }) => value.split(' ').slice(0, -1));
        expect(new Set(read('.dockerignore').trim().split('\n'))).toEqual(
          new Set(['*', ...sources.map((source) => `!${source}`)]),
        );
      });

      it('has the onnxruntime binary of its platform alone, and no development packages', async () => {
        const binaries = join(image, 'node_modules/onnxruntime-node/bin/napi-v6');
        const platforms = await readdir(binaries, { recursive: true, withFileTypes: true });
        const folders = platforms.filter(
          (each) => each.isDirectory() && each.parentPath !== binaries,
        );
        expect(folders.map(({ name }) => name)).toEqual([process.arch]);
        await expect(readdir(join(image, 'node_modules/typescript'))).rejects.toThrow('ENOENT');
      });

      it('has a health check that passes while the application is ready, and fails without it', async () => {
        const [file, ...args] = healthcheck.map((each) =>
          each.replace('http://127.0.0.1:3000', desk.url),
        ) as [string, ...string[]];
        await expect(run(file, args, image)).resolves.toBe('');

        const gone = args.map((each) => each.replace(desk.url, 'http://127.0.0.1:9'));
        await expect(run(file, gone, image)).rejects.toThrow('failed');
      });

      it('answers requests at both doors and of both versions that are under way when SIGTERM arrives, and ends with code 0 while Prometheus keeps its connection', async () => {
        const ending = await start({
          CANARY: 'july:50',
          CALL_TIMEOUT: '600000',
          SHUTDOWN_TIMEOUT: '600000',
        });
        const grpc = await InferenceGrpcClient.connect(ending.grpcAddress);
        await grpc.call('ServerReady');
        const many = { tickets: longTickets(30) };
        const texts = many.tickets.map(({ text }) => text);
        const keys = tenantKeys.slice(0, 3);
        const answered = keys.map((key) =>
          post('/tickets/classify/many', many, { at: ending, key }),
        );
        const embedded = keys.map((key) => grpcEmbeddingsOf(texts, grpc, key));
        while ((await versionsAt(ending)).some(({ queued }) => queued < 30)) {
          // They arrive, and some of them at each version.
        }
        const exitCode = ending.stop();

        for (const response of await Promise.all(answered)) {
          expect(response.status).toBe(200);
          await expect(response.json()).resolves.toHaveLength(30);
        }
        for (const embeddings of await Promise.all(embedded)) {
          expect(embeddings).toHaveLength(30 * 384);
        }
        grpc.close();
        if (await isScrapedFor(10_000, ending.metricsUrl)) {
          ending.signal('SIGKILL');
        }
        await expect(exitCode).resolves.toBe(0);
      });
    });

    describe('on Kubernetes', () => {
      it.each(['startupProbe', 'readinessProbe', 'livenessProbe'] as const)(
        'has a %s with a path that the application answers',
        async (probe) => {
          const { path, port } = container[probe].httpGet;
          expect(portOf(port).containerPort).toBe(3000);
          const response = await fetch(desk.url + path);
          expect(response.status).toBe(200);
        },
      );

      it('has the ports of the image and scrapes the port of the metrics', async () => {
        const ports = container.ports.map(({ containerPort }) => String(containerPort));
        expect(ports).toEqual(valueOf('EXPOSE').split(' '));
        const main = await readFile(join(image, 'dist/main.js'), 'utf8');
        const settings = await readFile(join(image, 'dist/settings.js'), 'utf8');
        expect(main).toContain(`METRICS_PORT ?? ${portOf('metrics').containerPort})`);
        expect(main).toContain(`PORT ?? ${portOf('http').containerPort})`);
        expect(settings).toContain(`'GRPC_PORT', ${portOf('grpc').containerPort})`);
        expect(template.metadata.annotations['prometheus.io/port']).toBe(
          String(portOf('metrics').containerPort),
        );
        const targets = kubernetesServices.map(({ spec }) =>
          spec.ports.map(({ targetPort }) => targetPort),
        );
        expect(targets).toEqual([['http'], ['grpc']]);
      });

      it('selects the pods of the deployment everywhere', () => {
        const budget = kinds.get('PodDisruptionBudget') as unknown as Deployment;
        expect(selector.matchLabels).toEqual(template.metadata.labels);
        for (const service of kubernetesServices) {
          expect(service.spec.selector).toEqual(template.metadata.labels);
        }
        expect(budget.spec.selector).toEqual(selector);
      });

      it('leaves time for preStop and the shutdown of the servings', () => {
        const [, preStop] = container.lifecycle.preStop.exec.command;
        const shutdown = container.env.find(({ name }) => name === 'SHUTDOWN_TIMEOUT')!.value;
        expect(template.spec.terminationGracePeriodSeconds).toBeGreaterThanOrEqual(
          Number(preStop) + Number(shutdown) / 1000 + 5,
        );
      });

      it('sets only variables that the application reads', async () => {
        const settings = await readFile(join(image, 'dist/settings.js'), 'utf8');
        const names = container.env
          .map(({ name }) => name)
          .filter((name) => name !== 'NODE_OPTIONS');
        const isRead = (name: string) => new RegExp(`'${name}'|env\\.${name}\\b`).test(settings);
        expect(names.filter((name) => !isRead(name))).toEqual([]);
      });

      it('starts with the version that the image has', async () => {
        const version = container.env.find(({ name }) => name === 'MODEL_VERSION')!.value;
        const [active] = await versionsAt(desk);
        expect(active).toMatchObject({ version, role: 'active' });
      });

      it('scales on a metric that the application exports and the adapter serves', async () => {
        const { metrics } = (kinds.get('HorizontalPodAutoscaler') as unknown as Autoscaler).spec;
        const names = metrics.map(({ pods }) => pods.metric.name);
        const { rules } = parse(read('prometheus-adapter.yaml')) as Adapter;
        const scraped = await scrape();

        expect(names).toEqual(['serving_queue_depth']);
        expect(rules.custom.map(({ seriesQuery }) => seriesQuery.split('{')[0])).toEqual(names);
        expect(scraped).toMatch(new RegExp(`^${names[0]}\\{serving_name="embedder"`, 'm'));
      });
    });

    describe('on KServe', () => {
      const ofKServe = kindsOf(resourcesOf('kserve.yaml'));
      const service = ofKServe.get('InferenceService') as unknown as InferenceService;
      const { predictor } = service.spec;
      const [own] = predictor.containers as [Container];

      it('has fields that the schema of KServe has, by their types', () => {
        expect(faultsOf(service, inferenceService)).toEqual([]);
        const wrong = structuredClone(service) as { spec: { predictor: object } };
        Object.assign(wrong.spec.predictor, { gracePeriod: 30, deploymentStrategy: 'Recreate' });
        expect(faultsOf(wrong, inferenceService)).toEqual([
          expect.stringMatching(/^\/spec\/predictor must NOT have .*gracePeriod/),
          expect.stringMatching(/^\/spec\/predictor\/deploymentStrategy must be object/),
        ]);
      });

      it('runs the pods of kubernetes.yaml, with the name and the variable that KServe reads', () => {
        const { name, ports, env, ...same } = own;
        expect([name, env[0]]).toEqual(['kserve-container', { name: 'PROTOCOL', value: 'v2' }]);
        expect(ports.map(({ containerPort }) => containerPort)).toEqual(
          ['http', 'grpc'].map((each) => portOf(each).containerPort),
        );
        const { name: _name, ports: _ports, ...deployed } = container;
        const text = JSON.stringify(deployed).replaceAll('"port":"http"', '"port":"http1"');
        expect({ ...same, env: env.slice(1) }).toEqual(JSON.parse(text));

        const { containers, deploymentStrategy, annotations, ...pod } = predictor;
        const { containers: _containers, ...deployedPod } = template.spec;
        const { strategy } = (kinds.get('Deployment') as unknown as Deployment).spec;
        expect(containers).toHaveLength(1);
        expect(pod).toEqual(deployedPod);
        expect(annotations).toEqual(template.metadata.annotations);
        expect(deploymentStrategy).toEqual({ type: 'RollingUpdate', ...strategy });
      });

      it('names its ports so that KServe finds HTTP first, and gRPC', () => {
        expect(own.ports.map(({ name }) => name)).toEqual(['http1', 'h2c']);
        expect(service.metadata.annotations).toEqual({
          'serving.kserve.io/deploymentMode': 'Standard',
          'serving.kserve.io/autoscalerClass': 'external',
        });
      });

      it('is called as the model of the application, at the path of KServe for its protocol', async () => {
        const model = `${desk.url}/v2/models/${service.metadata.name}`;
        const headers = { 'x-api-key': acme, 'content-type': 'application/json' };
        const inputs = [{ name: 'text', datatype: 'BYTES', shape: [1], data: ['Where is it?'] }];
        const ready = await fetch(`${model}/ready`, { headers });
        const answer = await fetch(`${model}/infer`, {
          method: 'POST',
          headers,
          body: JSON.stringify({ model_name: service.metadata.name, inputs }),
        });

        await expect(ready.json()).resolves.toMatchObject({ ready: true });
        await expect(answer.json()).resolves.toMatchObject({ outputs: [{ shape: [1, 384] }] });
        // KServe's older protocol is not there.
        const older = await post(`/v1/models/${service.metadata.name}:predict`, { instances: [] });
        expect(older.status).toBe(404);
      });

      it('scales the Deployment that KServe makes, as kubernetes.yaml does', () => {
        const name = `${service.metadata.name}-predictor`;
        const scaler = ofKServe.get('HorizontalPodAutoscaler') as unknown as Autoscaler;
        const { spec } = kinds.get('HorizontalPodAutoscaler') as unknown as Autoscaler;
        const budget = ofKServe.get('PodDisruptionBudget') as unknown as Deployment;
        expect(scaler.spec).toEqual({
          ...spec,
          scaleTargetRef: { apiVersion: 'apps/v1', kind: 'Deployment', name },
        });
        expect(budget.spec.selector).toEqual({ matchLabels: { app: `isvc.${name}` } });
      });
    });

    describe('with Compose', () => {
      const { services, configs } = parse(read('compose.yaml')) as Compose;
      const fileOf = (name: string) => parse(configs[name]!.content) as unknown;

      it('leaves time for the shutdown of the servings', async () => {
        const settings = await readFile(join(image, 'dist/settings.js'), 'utf8');
        const [, timeout] = /'SHUTDOWN_TIMEOUT', (\w+)/.exec(settings)!;
        const period = Number.parseInt(services['ticket-desk']!.stop_grace_period!, 10);
        expect(period).toBeGreaterThanOrEqual(Number(timeout!.replace('_', '')) / 1000 + 5);
      });

      it('scrapes the port of the metrics', () => {
        const port = valueOf('EXPOSE').split(' ').at(-1);
        expect(fileOf('prometheus')).toMatchObject({
          scrape_configs: [{ static_configs: [{ targets: [`ticket-desk:${port}`] }] }],
        });
      });

      it('publishes the ports of HTTP and gRPC', () => {
        const [http, grpc] = valueOf('EXPOSE').split(' ');
        expect(services['ticket-desk']!.ports).toEqual([`${http}:${http}`, `${grpc}:${grpc}`]);
      });

      it('mounts the folder of the versions where the application looks for them', async () => {
        const modelFile = await readFile(join(image, 'dist/model-file.js'), 'utf8');
        expect(services['ticket-desk']!.volumes).toEqual(['./models:/app/models:ro']);
        expect(modelFile).toContain("'models'");
      });

      it('loads the alerts of the manual into Prometheus', () => {
        const [file, target] = services.prometheus!.volumes![0]!.split(':') as [string, string];
        const { rule_files: rules } = fileOf('prometheus') as { rule_files: string[] };
        expect(rules.map((rule) => `/etc/prometheus/${rule}`)).toEqual([target]);
        expect(read(file)).toBe(readFileSync(join(root, 'docs/prometheus-alerts.yaml'), 'utf8'));
      });

      describeUnless(promtoolMissing, 'with promtool', () => {
        it('has a valid configuration of Prometheus', async () => {
          const [file] = services.prometheus!.volumes![0]!.split(':') as [string];
          const { rule_files: rules } = fileOf('prometheus') as { rule_files: string[] };
          const config = join(folder, 'prometheus.yml');
          await writeFile(config, configs.prometheus!.content);
          await cp(join(sample, file), join(folder, rules[0]!));
          const report = execFileSync('promtool', ['check', 'config', config], {
            encoding: 'utf8',
          });
          expect(report).toContain('is valid prometheus config file');
        });
      });

      it('gives Grafana the data source and the dashboard of the manual', () => {
        const { configs: files = [], volumes = [] } = services.grafana!;
        expect(files.map(({ source }) => source)).toEqual(['datasource', 'dashboards']);
        expect(fileOf('datasource')).toMatchObject({
          datasources: [{ type: 'prometheus', url: 'http://prometheus:9090' }],
        });
        const [file, target] = volumes[0]!.split(':') as [string, string];
        expect(fileOf('dashboards')).toMatchObject({
          providers: [{ options: { path: target.slice(0, target.lastIndexOf('/')) } }],
        });
        expect(read(file)).toBe(readFileSync(join(root, 'docs/grafana-dashboard.json'), 'utf8'));
      });
    });
  },
);

/** The page of the board, or a part of it, for a browser that signs in. */
function board({ url }: { readonly url: string }, password: string, path = ''): Promise<Response> {
  return fetch(`${url}/operator/servings/${path}`, {
    headers: { authorization: `Basic ${btoa(`any:${password}`)}` },
  });
}

/** The operator pauses or resumes the embedder on the board. */
async function changeOnBoard({ url }: { readonly url: string }, change: string): Promise<void> {
  const response = await fetch(`${url}/operator/servings/changes`, {
    method: 'POST',
    headers: {
      authorization: `Basic ${btoa(`any:${operator}`)}`,
      'content-type': 'application/json',
      'x-serving-board': '1',
    },
    body: JSON.stringify({ serving: 'embedder', change }),
  });
  expect({ change, status: response.status }).toEqual({ change, status: 200 });
}

/** The versions that the operator sees. */
async function versionsAt(at: ImageProcess): Promise<VersionStatus[]> {
  const headers = { 'x-api-key': operator };
  const response = await fetch(`${at.url}/operator/versions`, { headers });
  return (await response.json()) as VersionStatus[];
}

/** The embedding of one text, by HTTP. */
async function embeddingOf(text: string, at: ImageProcess, key: string): Promise<number[]> {
  const response = await fetch(`${at.url}/v2/models/embedder/infer`, {
    method: 'POST',
    headers: { 'x-api-key': key },
    body: JSON.stringify({
      inputs: [{ name: 'text', datatype: 'BYTES', shape: [1], data: [text] }],
    }),
  });
  const { outputs } = (await response.json()) as { outputs: [{ data: number[] }] };
  return outputs[0].data;
}

/** The embeddings of some texts, one after the other. */
async function grpcEmbeddingsOf(
  texts: readonly string[],
  grpc: InferenceGrpcClient,
  key: string,
): Promise<Float32Array> {
  const contents = { bytes_contents: texts.map((text) => Buffer.from(text)) };
  const reply = await grpc.call<{ raw_output_contents: [Buffer] }>(
    'ModelInfer',
    {
      model_name: 'embedder',
      inputs: [{ name: 'text', datatype: 'BYTES', shape: [texts.length], contents }],
    },
    { 'x-api-key': key },
  );
  return new Float32Array(Uint8Array.from(reply.raw_output_contents[0]).buffer);
}

/** The model after a little more training, as it were: some weights of all layers are others. */
function withOtherWeights(model: Buffer): Buffer {
  const other = Buffer.from(model);
  for (let part = 1; part < 16; part++) {
    const start = Math.floor((part * model.length) / 16);
    for (let i = start; i < start + 8192; i++) {
      other[i] = other[i]! ^ 1;
    }
  }
  return other;
}

/** Scrapes until the process ends, over one connection, as Prometheus does; for so many ms. */
async function isScrapedFor(ms: number, url: string): Promise<boolean> {
  for (let waited = 0; waited < ms; waited += 200) {
    const response = await fetch(url).catch(() => undefined);
    if (!response) {
      return false;
    }
    await response.text();
    await delay(200);
  }
  return true;
}

const batchesIn = (scraped: string) =>
  [...scraped.matchAll(/^serving_batch_size_count\{.*\} (\d+)$/gm)].reduce(
    (sum, [, count]) => sum + Number(count),
    0,
  );

const queuedIn = (scraped: string) =>
  Number(/^serving_queue_depth\{.*\} (\d+)$/m.exec(scraped)?.[1] ?? 0);

interface Probe {
  readonly httpGet: { readonly path: string; readonly port: string };
}

interface Container {
  readonly name: string;
  readonly ports: readonly { readonly name: string; readonly containerPort: number }[];
  readonly env: readonly { readonly name: string; readonly value: string }[];
  readonly startupProbe: Probe;
  readonly readinessProbe: Probe;
  readonly livenessProbe: Probe;
  readonly lifecycle: { readonly preStop: { readonly exec: { readonly command: string[] } } };
}

interface Deployment {
  readonly spec: {
    readonly selector: { readonly matchLabels: object };
    readonly strategy: object;
    readonly template: {
      readonly metadata: {
        readonly labels: object;
        readonly annotations: Readonly<Record<string, string>>;
      };
      readonly spec: {
        readonly terminationGracePeriodSeconds: number;
        readonly securityContext: object;
        readonly containers: readonly Container[];
      };
    };
  };
}

interface InferenceService {
  readonly metadata: { readonly name: string; readonly annotations: object };
  readonly spec: {
    readonly predictor: {
      readonly containers: readonly Container[];
      readonly annotations: object;
      readonly deploymentStrategy: object;
    };
  };
}

interface Service {
  readonly spec: {
    readonly selector: object;
    readonly ports: readonly { readonly targetPort: string }[];
  };
}

interface Autoscaler {
  readonly spec: {
    readonly metrics: readonly { readonly pods: { readonly metric: { readonly name: string } } }[];
  };
}

interface Adapter {
  readonly rules: { readonly custom: readonly { readonly seriesQuery: string }[] };
}

interface Compose {
  readonly services: Readonly<
    Record<
      string,
      {
        readonly configs?: readonly { readonly source: string }[];
        readonly volumes?: readonly string[];
        readonly ports?: readonly string[];
        readonly stop_grace_period?: string;
      }
    >
  >;
  readonly configs: Readonly<Record<string, { readonly content: string }>>;
}
