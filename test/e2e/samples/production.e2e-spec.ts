import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { chmod, cp, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { parse, parseAllDocuments } from 'yaml';
import {
  buildStages,
  giveToUser,
  nonRoot,
  run,
  stagesOf,
} from '../../fixtures/deployment/dockerfile.js';
import { ImageProcess, namespaceMissing } from '../../fixtures/deployment/image-process.js';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { blocksOf } from '../starters/starter.js';
import { registryMissing } from '../../fixtures/registry.js';

const root = fileURLToPath(new URL('../../..', import.meta.url));
const sample = join(root, 'sample/07-production');
const read = (file: string) => readFileSync(join(sample, file), 'utf8');

/** The key of the README. */
const acme = 'a-key-of-16-characters';
const globex = 'globex-key-000000001';
const API_KEYS = `acme:${acme}, globex:${globex}`;

interface Answer {
  readonly topic: string;
  readonly confidence: number;
  readonly example: string;
}

const ticket = { subject: 'Still waiting', text: 'I ordered two weeks ago and nothing has come.' };
const longTickets = (count: number) =>
  Array.from({ length: count }, (_, i) => ({ subject: `${i}`, text: 'where is it? '.repeat(300) }));

/** The instructions of the stage that runs. */
const instructions = stagesOf(read('Dockerfile')).at(-1)!.instructions;
const valueOf = (name: string) => instructions.find((each) => each.name === name)!.value;
const command = JSON.parse(valueOf('CMD')) as string[];
const healthcheck = JSON.parse(/CMD (.*)$/.exec(valueOf('HEALTHCHECK'))![1]!) as string[];

const kinds = new Map(
  parseAllDocuments(read('kubernetes.yaml')).map((document) => {
    expect(document.errors).toEqual([]);
    const resource = document.toJS() as { kind: string };
    return [resource.kind, resource] as const;
  }),
);
const { template, selector } = (kinds.get('Deployment') as unknown as Deployment).spec;
const [container] = template.spec.containers as [Container];
const portOf = (name: string) => container.ports.find((port) => port.name === name)!;

describeUnless(registryMissing ?? namespaceMissing, 'The ticket desk', () => {
  let folder: string;
  let image: string;
  let desk: ImageProcess;

  /** A copy with the packed package, as it is with the published one elsewhere. */
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), 'ticket-desk-'));
    await chmod(folder, 0o755);
    await giveToUser(folder);
    const context = join(folder, 'context/app');
    const files = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard'], {
      cwd: sample,
      encoding: 'utf8',
    });
    for (const file of files.trim().split('\n')) {
      await cp(join(sample, file), join(context, file));
    }
    await giveToUser(context);
    await giveToUser(join(context, 'package.json'));
    execFileSync('npm', ['pack', '--ignore-scripts', '--pack-destination', folder], { cwd: root });
    const [tarball] = (await readdir(folder)).filter((name) => name.endsWith('.tgz'));
    await run('npm', ['install', '--package-lock-only', join(folder, tarball!)], context);

    image = await buildStages(context, folder);
    // As with `read_only` and `readOnlyRootFilesystem`. Docker copies as root.
    execFileSync('chmod', ['-R', 'a-w', image]);
    if (nonRoot.uid !== undefined) {
      execFileSync('chown', ['-R', 'root:root', image]);
    }
    desk = await start();
  }, 300_000);

  afterAll(async () => {
    await desk?.stop();
    execFileSync('chmod', ['-R', 'u+w', image]);
    await rm(folder, { recursive: true, force: true });
  }, 30_000);

  const start = (environment: NodeJS.ProcessEnv = {}) =>
    ImageProcess.start(image, command, { NODE_ENV: 'production', API_KEYS, ...environment });

  const post = (path: string, body: object, { at = desk, key = acme } = {}) =>
    fetch(at.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-api-key': key },
      body: JSON.stringify(body),
    });
  const scrape = async () => (await fetch(desk.metricsUrl)).text();

  it.each([
    [{ subject: 'Wrong amount', text: 'You took the money from my card two times.' }, 'billing'],
    [
      { subject: 'Shoes', text: 'They are too small, I want my money back.' },
      'refunds and returns',
    ],
    [ticket, 'delivery'],
    [{ subject: 'Password', text: 'I cannot sign in any more.' }, 'account and login'],
    [{ subject: 'Help', text: 'Since the update the app closes by itself.' }, 'technical problem'],
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
    expect(batchesIn(await scrape()) - before).toBeLessThan(12);
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
    const hasty = await start({ CALL_TIMEOUT: '1' });
    try {
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
    const crowd = longTickets(250).map((each) => classify(each, acme));
    while (queuedIn(await scrape()) < 150) {
      // The crowd is on its way.
    }
    const before = order.length;
    await classify(longTickets(1)[0]!, globex);
    const overtaken = order.indexOf(globex) - before;
    await Promise.all(crowd);

    // In the order of arrival, the 150 queued tickets would have been answered first.
    expect(overtaken).toBeLessThan(150);
  });

  it('The boot fails with advice when there are no API keys', async () => {
    await expect(start({ API_KEYS: '' })).rejects.toThrow(
      'Set API_KEYS to tenant:key,tenant:key, with keys of 16 characters or more',
    );
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
      expect(template.spec.securityContext).toMatchObject({ runAsNonRoot: true, runAsUser: 1000 });
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

    it('answers a request that is under way when SIGTERM arrives, and ends with code 0 while Prometheus keeps its connection', async () => {
      const ending = await start();
      const many = { tickets: longTickets(100) };
      const answered = post('/tickets/classify/many', many, { at: ending });
      while (queuedIn(await (await fetch(ending.metricsUrl)).text()) === 0) {
        // The request is on its way.
      }
      const exitCode = ending.stop();
      const response = await answered;

      expect(response.status).toBe(200);
      await expect(response.json()).resolves.toHaveLength(100);
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
      const defaults = await readFile(join(image, 'dist/main.js'), 'utf8');
      for (const port of ports) {
        expect(defaults).toContain(`?? ${port})`);
      }
      expect(template.metadata.annotations['prometheus.io/port']).toBe(
        String(portOf('metrics').containerPort),
      );
      const service = kinds.get('Service') as unknown as Service;
      expect(service.spec.ports.map(({ targetPort }) => targetPort)).toEqual(['http']);
    });

    it('selects the pods of the deployment everywhere', () => {
      const service = kinds.get('Service') as unknown as Service;
      const budget = kinds.get('PodDisruptionBudget') as unknown as Deployment;
      expect(selector.matchLabels).toEqual(template.metadata.labels);
      expect(service.spec.selector).toEqual(template.metadata.labels);
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
      const names = container.env.map(({ name }) => name).filter((name) => name !== 'NODE_OPTIONS');
      expect(names.filter((name) => !settings.includes(`'${name}'`))).toEqual([]);
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
      const port = valueOf('EXPOSE').split(' ')[1];
      expect(fileOf('prometheus')).toMatchObject({
        scrape_configs: [{ static_configs: [{ targets: [`ticket-desk:${port}`] }] }],
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
});

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
        readonly stop_grace_period?: string;
      }
    >
  >;
  readonly configs: Readonly<Record<string, { readonly content: string }>>;
}
