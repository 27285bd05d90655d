import { type INestApplication } from '@nestjs/common';
import { afterAll, beforeAll, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { PrometheusExporter } from '@opentelemetry/exporter-prometheus';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { ServingModule, ServingService, Tensor } from 'nestjs-serving';
import { ServingOpenTelemetryModule } from 'nestjs-serving/opentelemetry';
import { describeUnless } from '../../fixtures/describe-unless.js';
import { freePort } from '../../fixtures/http/free-port.js';
import {
  prometheusMissing,
  promtoolMissing,
  PrometheusServer,
} from '../../fixtures/prometheus/prometheus-server.js';

const alerts = fileURLToPath(new URL('../../../docs/prometheus-alerts.yaml', import.meta.url));
const alertTests = fileURLToPath(
  new URL('../../fixtures/prometheus/alerts.test.yaml', import.meta.url),
);

interface Panel {
  readonly id: number;
  readonly title: string;
  readonly gridPos: {
    readonly x: number;
    readonly y: number;
    readonly w: number;
    readonly h: number;
  };
  readonly targets?: readonly { readonly expr: string }[];
}

const { panels } = JSON.parse(
  readFileSync(new URL('../../../docs/grafana-dashboard.json', import.meta.url), 'utf8'),
) as { readonly panels: readonly Panel[] };

const queries = panels.flatMap(({ title, targets = [] }) =>
  targets.map(({ expr }) => ({
    title,
    expr: expr.replaceAll('$__rate_interval', '1m').replaceAll('$serving', '.*'),
  })),
);

/** Its batches are padded, and fail for a negative number. */
const echo = {
  name: 'echo',
  batchSize: [4, 8],
  model: {
    useFactory: () => (rows: Tensor) => {
      if ((rows.data as Float32Array).some((number) => number < 0)) {
        throw new Error('a batch that fails');
      }
      return rows;
    },
  },
  recovery: { isolateFailures: false },
};

const costly = {
  name: 'costly',
  batchSize: { cost: { of: (text: string) => text.length, most: 8, padded: true } },
  model: { useFactory: () => (texts: string[]) => texts },
};

const row = (number: number): Tensor => new Tensor('float32', [number], [1]);

describeUnless(prometheusMissing, 'A real Prometheus', () => {
  let app: INestApplication;
  let prometheus: PrometheusServer;
  let exporter: PrometheusExporter;
  let isOver = false;
  let load: Promise<void>;

  beforeAll(async () => {
    const port = await freePort();
    exporter = new PrometheusExporter({ host: '127.0.0.1', port });
    const meterProvider = new MeterProvider({ readers: [exporter] });
    const testing = await Test.createTestingModule({
      imports: [
        ServingModule.forRoot({ servings: [echo, costly] }),
        ServingOpenTelemetryModule.forRoot({ meterProvider }),
      ],
    }).compile();
    app = testing.createNestApplication({ logger: false });
    await app.init();
    load = callUntil(() => isOver, app.get(ServingService));
    prometheus = await PrometheusServer.start(port, alerts);
  });

  afterAll(async () => {
    isOver = true;
    await load;
    await prometheus.end();
    await exporter.shutdown();
    await app.close();
  });

  it.each(queries)(
    '[12.3] The query of the panel "$title" gives finite numbers',
    async ({ expr }) => {
      const values = await finiteValues(prometheus, expr);

      expect(values).not.toEqual([]);
      expect(values.filter((value) => !Number.isFinite(value))).toEqual([]);
    },
  );

  it('[12.3] Prometheus evaluates every alert rule without an error', async () => {
    let rules = await prometheus.rules();
    while (rules.some(({ health }) => health === 'unknown')) {
      await delay(200);
      rules = await prometheus.rules();
    }

    expect(rules.map(({ name }) => name)).toContain('ServingPartitionDown');
    expect(rules.filter(({ health }) => health !== 'ok')).toEqual([]);
  });
});

describeUnless(promtoolMissing, 'promtool', () => {
  it('[12.3] The alerts fire for what their rules describe, and not otherwise', () => {
    const report = execFileSync('promtool', ['test', 'rules', alertTests], { encoding: 'utf8' });

    expect(report).toContain('SUCCESS');
  });
});

it('[12.3] The panels of the board have their own numbers and places', () => {
  expect(new Set(panels.map(({ id }) => id)).size).toBe(panels.length);
  for (const [i, { gridPos: a }] of panels.entries()) {
    for (const { gridPos: b } of panels.slice(i + 1)) {
      const overlaps = a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
      expect(overlaps).toBe(false);
    }
  }
});

/** Calls of which some are answered, some fail, and some are refused. */
async function callUntil(isDone: () => boolean, servings: ServingService): Promise<void> {
  while (!isDone()) {
    await Promise.all([1, 2, 3, 4, 5].map((number) => servings.batchedRun('echo', row(number))));
    await Promise.all(['four', 'of'].map((text) => servings.batchedRun('costly', text)));
    await Promise.allSettled([
      servings.batchedRun('echo', row(1), { key: 'unknown' }),
      servings.batchedRun('echo', row(-1)),
    ]);
    await delay(50);
  }
}

/** The values of the query, once Prometheus has scraped often enough for numbers. */
async function finiteValues(
  prometheus: PrometheusServer,
  expr: string,
): Promise<readonly number[]> {
  const deadline = Date.now() + 400_000;
  for (;;) {
    const values = (await prometheus.query(expr)).map(({ value }) => value);
    const isComplete = values.length > 0 && values.every(Number.isFinite);
    if (isComplete || Date.now() > deadline) {
      return values;
    }
    await delay(250);
  }
}
