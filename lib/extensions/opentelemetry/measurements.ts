import type { BatchObservableCallback, Counter, Histogram, Meter } from '@opentelemetry/api';
import {
  isServingError,
  type PartitionStatus,
  type ServingHealth,
  type BatchEndEvent,
  type CallEndEvent,
  type SequenceStepEvent,
  type ServingEvent,
} from '../../index.js';
import { answeredBy, hasFailed, outcomeOf, versionOf } from './attributes.js';

/** Small models run in half a millisecond; SDKs' defaults are for HTTP requests. */
const seconds = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];
const rows = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
const tenths = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1];

const states: readonly PartitionStatus['state'][] = ['up', 'restarting', 'hung', 'lost'];

export class Measurements {
  private readonly callDuration: Histogram;
  private readonly rejections: Counter;
  private readonly batchSize: Histogram;
  private readonly batchFill: Histogram;
  private readonly batchWait: Histogram;
  private readonly batchRun: Histogram;
  private readonly batchExpected: Histogram;
  private readonly padding: Counter;
  private readonly cost: Counter;
  private readonly paddingCost: Counter;
  private readonly stepSize: Histogram;
  private readonly stepDuration: Histogram;
  readonly close: () => void;

  constructor(meter: Meter, health: () => readonly ServingHealth[]) {
    const histogram = (
      name: string,
      unit: string,
      boundaries: number[],
      description: string,
    ): Histogram =>
      meter.createHistogram(name, {
        unit,
        description,
        advice: { explicitBucketBoundaries: boundaries },
      });
    this.callDuration = histogram(
      'serving.call.duration',
      's',
      seconds,
      'Duration of calls, from their arrival to their answer',
    );
    this.batchSize = histogram(
      'serving.batch.size',
      '{row}',
      rows,
      'Rows of a batch, without padding',
    );
    this.batchFill = histogram(
      'serving.batch.fill',
      '1',
      tenths,
      'The share of the room of a batch that was taken: of its rows, or of its budget if larger',
    );
    this.batchWait = histogram(
      'serving.batch.wait.duration',
      's',
      seconds,
      'How long the oldest row of a batch waited',
    );
    this.batchRun = histogram(
      'serving.batch.run.duration',
      's',
      seconds,
      'How long a batch ran, the way to its thread included',
    );
    this.batchExpected = histogram(
      'serving.batch.expected.duration',
      's',
      seconds,
      'How long a batch was expected to run, by its rows and the batches before it',
    );
    this.stepSize = histogram(
      'serving.sequence.step.size',
      '{row}',
      rows,
      'Rows of sequences that a step ran together',
    );
    this.stepDuration = histogram(
      'serving.sequence.step.duration',
      's',
      seconds,
      'How long a step of sequences ran in the model',
    );
    this.rejections = meter.createCounter('serving.call.rejections', {
      unit: '{call}',
      description:
        'Calls that were refused, or given up by the serving, before any of their rows ran',
    });
    this.padding = meter.createCounter('serving.batch.padding', {
      unit: '{row}',
      description: 'Rows that were added to batches to fill them up',
    });
    this.cost = meter.createCounter('serving.batch.cost', {
      description: 'What batches cost, padding included, in servings with batchSize.cost',
    });
    this.paddingCost = meter.createCounter('serving.batch.cost.padding', {
      description: 'What the padding of rows to the longest of their batch cost',
    });
    const depth = meter.createObservableUpDownCounter('serving.queue.depth', {
      unit: '{row}',
      description: 'Rows that no partition has taken yet',
    });
    const partitions = meter.createObservableUpDownCounter('serving.partition.count', {
      unit: '{partition}',
      description: 'Partitions by their state',
    });
    const restarts = meter.createObservableCounter('serving.partition.restarts', {
      unit: '{restart}',
      description: 'How often threads or processes of partitions were started again',
    });
    const observe: BatchObservableCallback = (result) => {
      for (const [serving, parts] of byName(health())) {
        const statuses = parts.flatMap((part) => part.partitions);
        // A handle without partitions has no queue.
        if (statuses.length === 0) {
          continue;
        }
        const attributes = { 'serving.name': serving };
        result.observe(depth, sumOf(parts.map(({ queued }) => queued)), attributes);
        // A gauge keeps its last value without a report.
        for (const state of states) {
          const count = statuses.filter((status) => status.state === state).length;
          result.observe(partitions, count, { ...attributes, 'serving.partition.state': state });
        }
        result.observe(restarts, sumOf(statuses.map((status) => status.restarts)), attributes);
      }
    };
    const observed = [depth, partitions, restarts];
    meter.addBatchObservableCallback(observe, observed);
    this.close = () => meter.removeBatchObservableCallback(observe, observed);
  }

  observe(event: ServingEvent): void {
    if (event.type === 'call:end') {
      this.callEnded(event);
    } else if (event.type === 'batch:end') {
      this.batchEnded(event);
    } else if (event.type === 'sequence:step') {
      this.stepped(event);
    }
  }

  private callEnded(event: CallEndEvent): void {
    const { serving, mode, stage, preprocessing, waiting, running, postprocessing, error } = event;
    const attributes = { 'serving.name': serving, ...versionOf(event), ...outcomeOf(event) };
    const duration = preprocessing + waiting + running + postprocessing;
    this.callDuration.record(duration / 1000, {
      ...attributes,
      ...answeredBy(event),
      'serving.call.mode': mode,
    });
    if (
      (stage === 'preprocessing' || stage === 'waiting') &&
      hasFailed(event) &&
      isServingError(error)
    ) {
      this.rejections.add(1, attributes);
    }
  }

  private stepped(event: SequenceStepEvent): void {
    const attributes = {
      'serving.name': event.serving,
      ...versionOf(event),
      'serving.batch.key': event.key,
      'serving.partition.id': event.partition,
    };
    this.stepSize.record(event.rows, attributes);
    this.stepDuration.record(event.runTime / 1000, attributes);
  }

  private batchEnded(event: BatchEndEvent): void {
    if (event.revoked) {
      return;
    }
    const attributes = {
      'serving.name': event.serving,
      ...versionOf(event),
      'serving.batch.key': event.key,
    };
    const closed = { ...attributes, 'serving.batch.close_reason': event.reason };
    const run = { ...attributes, 'serving.partition.id': event.partition, ...outcomeOf(event) };
    this.batchSize.record(event.rows, closed);
    this.batchFill.record(event.fill, closed);
    this.batchWait.record(event.wait / 1000, attributes);
    this.batchRun.record(event.runTime / 1000, run);
    if (event.expected !== undefined) {
      this.batchExpected.record(event.expected / 1000, attributes);
    }
    this.padding.add(event.padding, attributes);
    if (event.cost) {
      this.cost.add(event.cost.padded, attributes);
      this.paddingCost.add(event.cost.padded - event.cost.sum, attributes);
    }
  }
}

function sumOf(numbers: readonly number[]): number {
  return numbers.reduce((sum, number) => sum + number, 0);
}

/** Classes' methods may share a serving name. */
function byName(all: readonly ServingHealth[]): ReadonlyMap<string, readonly ServingHealth[]> {
  const parts = new Map<string, ServingHealth[]>();
  for (const health of all) {
    parts.set(health.serving, [...(parts.get(health.serving) ?? []), health]);
  }
  return parts;
}
