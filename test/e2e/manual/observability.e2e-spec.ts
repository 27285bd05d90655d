import { Controller, Get, Header, type INestApplication, Module } from '@nestjs/common';
// #region prometheus-imports
import { metrics } from '@opentelemetry/api';
import { PrometheusExporter } from '@opentelemetry/exporter-prometheus';
import { MeterProvider } from '@opentelemetry/sdk-metrics';
// #endregion
import { PrometheusSerializer } from '@opentelemetry/exporter-prometheus';
import { afterAll, beforeAll, describe, expect, it } from '@jest/globals';
import { Test } from '@nestjs/testing';
import { readFileSync } from 'node:fs';
import { parse } from 'yaml';
import { ServingModule, ServingService, UnknownKeyError } from 'nestjs-serving';
import { ServingOpenTelemetryModule } from 'nestjs-serving/opentelemetry';
import { freePort } from '../../fixtures/http/free-port.js';
import { describeOnPlatforms } from '../../fixtures/partitions/platforms.js';

const echo = {
  name: 'echo',
  rollout: { version: 'june' },
  model: { useFactory: () => (texts: string[]) => texts },
};
const costly = {
  name: 'costly',
  batchSize: { cost: { of: (text: string) => text.length, most: 8 } },
  model: { useFactory: () => (texts: string[]) => texts },
};

@Module({
  imports: [ServingModule.forRoot({ servings: [echo, costly] }), ServingOpenTelemetryModule],
})
class AppModule {}

interface AlertRule {
  readonly alert: string;
  readonly expr: string;
}

interface Dashboard {
  readonly panels: readonly {
    readonly title: string;
    readonly targets?: readonly { readonly expr: string }[];
  }[];
}

const dashboard = JSON.parse(
  readFileSync(new URL('../../../docs/grafana-dashboard.json', import.meta.url), 'utf8'),
) as Dashboard;
const panelQueries = dashboard.panels.flatMap(({ title, targets = [] }) =>
  targets.map(({ expr }) => ({ title, expr })),
);
const page = readFileSync(new URL('../../../docs/observability.md', import.meta.url), 'utf8');
const alertRules = parse(
  readFileSync(new URL('../../../docs/prometheus-alerts.yaml', import.meta.url), 'utf8'),
) as { readonly groups: readonly { readonly rules: readonly AlertRule[] }[] };
const alertQueries = alertRules.groups.flatMap(({ rules }) =>
  rules.map(({ alert, expr }) => ({ title: alert, expr })),
);

/** Labels of each scraped metric by its name. */
function labelsIn(scraped: string): ReadonlyMap<string, ReadonlySet<string>> {
  const metricLabels = new Map<string, Set<string>>();
  for (const [, name, labels] of scraped.matchAll(/^(serving_\w+)\{(.*)\}/gm)) {
    const names = [...labels!.matchAll(/(\w+)="/g)].map(([, label]) => label!);
    metricLabels.set(name!, new Set([...(metricLabels.get(name!) ?? []), ...names]));
  }
  return metricLabels;
}

/** The metrics of a query and the labels that it filters or groups them by. */
function partsOf(expr: string): { metrics: string[]; labels: string[] } {
  const names = [...expr.matchAll(/\b(serving_\w+)[{[]/g)].map(([, metric]) => metric!);
  const filters = [...expr.matchAll(/\{(.*?)\}/g)].flatMap(([, filter]) =>
    [...filter!.matchAll(/(\w+)\s*[=!]/g)].map(([, label]) => label!),
  );
  const groups = [...expr.matchAll(/by \((.*?)\)/g)].flatMap(([, list]) => list!.split(', '));
  // Prometheus itself adds the label `job`.
  const own = [...filters, ...groups].filter((label) => label !== 'job');
  return { metrics: names, labels: own };
}

describe("The manual's Prometheus exporter", () => {
  let app: INestApplication;
  let scraped: string;

  beforeAll(async () => {
    const free = await freePort();
    process.env['METRICS_PORT'] = String(free);
    // #region prometheus
    // main.ts, before NestFactory.create(): serves http://localhost:9464/metrics.
    const exporter = new PrometheusExporter({ port: Number(process.env['METRICS_PORT'] ?? 9464) });
    metrics.setGlobalMeterProvider(new MeterProvider({ readers: [exporter] }));
    // #endregion
    const testing = await Test.createTestingModule({ imports: [AppModule] }).compile();
    app = testing.createNestApplication({ logger: false });
    await app.init();
    const servings = app.get(ServingService);
    await Promise.all(['a', 'b', 'c'].map((text) => servings.batchedRun('echo', text)));
    // The run time of a batch is predicted once eight have run.
    for (let batch = 0; batch < 8; batch++) {
      await servings.batchedRun('echo', 'd');
    }
    await servings.batchedRun('costly', 'text');
    const refused = servings.batchedRun('echo', 'd', { key: 'unknown' });
    await expect(refused).rejects.toThrow(UnknownKeyError);

    const response = await fetch(`http://127.0.0.1:${free}/metrics`);
    scraped = await response.text();
    await exporter.shutdown();
    metrics.disable();
  });

  afterAll(() => app.close());

  it('[12.3] Prometheus scrapes calls, refusals, batches, queues and partitions over HTTP', () => {
    expect(scraped).toMatch(/^serving_call_duration_count\{serving_name="echo",.*\} 11$/m);
    expect(scraped).toMatch(
      /^serving_call_rejections_total\{.*error_type="SERVING_UNKNOWN_KEY".*\} 1$/m,
    );
    expect(scraped).toMatch(/^serving_batch_size_sum\{serving_name="echo",.*\} 11$/m);
    expect(scraped).toMatch(/^serving_queue_depth\{serving_name="echo",.*\} 0$/m);
    expect(scraped).toMatch(/^serving_partition_count\{.*serving_partition_state="up".*\} 1$/m);
  });

  it.each([...panelQueries, ...alertQueries])(
    '[12.3] The query for "$title" uses scraped metrics and labels',
    ({ expr }) => {
      const metricLabels = labelsIn(scraped);
      const query = partsOf(expr);

      expect(query.metrics).not.toEqual([]);
      expect(query.metrics.filter((metric) => !metricLabels.has(metric))).toEqual([]);
      const labels = query.metrics.flatMap((metric) => [...metricLabels.get(metric)!]);
      expect(query.labels.filter((label) => !labels.includes(label))).toEqual([]);
    },
  );

  it('[12.3] The manual describes each alert rule', () => {
    const described = [...page.matchAll(/^\| `(Serving\w+)` \|/gm)].map(([, alert]) => alert);

    expect(described).toEqual(alertQueries.map(({ title }) => title));
  });
});

describeOnPlatforms("The manual's metrics on the port of the application", (listen) => {
  it('[N11] Prometheus scrapes the servings beside the routes of the application', async () => {
    // #region own-port
    // Without a port of its own; PrometheusSerializer comes from the same package.
    const exporter = new PrometheusExporter({ preventServerStart: true });
    metrics.setGlobalMeterProvider(new MeterProvider({ readers: [exporter] }));

    @Controller('metrics')
    class MetricsController {
      private readonly serializer = new PrometheusSerializer();

      @Get()
      @Header('content-type', 'text/plain; version=0.0.4')
      async read(): Promise<string> {
        const { resourceMetrics } = await exporter.collect();
        return this.serializer.serialize(resourceMetrics);
      }
    }
    // #endregion
    const site = await listen({ imports: [AppModule], controllers: [MetricsController] });
    await site.app.get(ServingService).batchedRun('echo', 'a');

    const { headers, body } = await site.get('/metrics');
    metrics.disable();

    expect(headers.get('content-type')).toMatch(/^text\/plain; version=0\.0\.4/);
    expect(body).toMatch(
      /^# TYPE serving_call_duration histogram\n[^]*^serving_call_duration_count\{serving_name="echo",.*\} 1$/m,
    );
  });
});
