import {
  type Context,
  context,
  type HrTime,
  type Link,
  type Span,
  type SpanContext,
  SpanStatusCode,
  trace,
  type Tracer,
} from '@opentelemetry/api';
import type {
  BatchEndEvent,
  BatchStartEvent,
  CallEndEvent,
  CallStartEvent,
  ServingEvent,
} from '../../index.js';
import { isError, messageOf } from '../../doors/text.js';
import {
  answeredBy,
  batchAttributes,
  batchEndAttributes,
  hasFailed,
  methodOf,
  outcomeOf,
  stages,
  versionOf,
} from './attributes.js';

interface OpenCall {
  readonly span: Span;
  /** The caller's context with the span. */
  readonly context: Context;
  /** Milliseconds since 1970. */
  readonly startedAt: number;
  readonly batches: SpanContext[];
}

/**
 * A call's span has a child per stage. A batch has many callers, so its span has links to its
 * calls' spans instead of a parent; their execution links back.
 */
export class Spans {
  private readonly calls = new Map<string, OpenCall>();
  private readonly batches = new Map<string, Span>();

  constructor(private readonly tracer: Tracer) {}

  observe(event: ServingEvent): void {
    switch (event.type) {
      case 'call:start':
        return this.callStarted(event);
      case 'call:end':
        return this.callEnded(event);
      case 'batch:start':
        return this.batchStarted(event);
      case 'batch:end':
        return this.batchEnded(event);
    }
  }

  close(): void {
    [...this.batches.values()].forEach((span) => span.end());
    [...this.calls.values()].forEach(({ span }) => span.end());
    this.batches.clear();
    this.calls.clear();
  }

  private callStarted(event: CallStartEvent): void {
    const { serving, call, mode } = event;
    const attributes = {
      'serving.name': serving,
      ...versionOf(event),
      'serving.call.mode': mode,
    };
    const parent = context.active();
    // The SDK's clock differs from the monotonic one.
    const startedAt = Date.now();
    const span = this.tracer.startSpan(
      `${methodOf[mode]} ${serving}`,
      { attributes, startTime: hrTime(startedAt) },
      parent,
    );
    if (span.isRecording()) {
      this.calls.set(callId(serving, call), {
        span,
        context: trace.setSpan(parent, span),
        startedAt,
        batches: [],
      });
    }
  }

  private callEnded(event: CallEndEvent): void {
    const id = callId(event.serving, event.call);
    const open = this.calls.get(id);
    if (!open) {
      return;
    }
    this.calls.delete(id);
    const endedAt = this.tellStages(event, open);
    open.span.setAttributes({
      'serving.call.rows': event.rows,
      ...answeredBy(event),
      ...outcomeOf(event),
    });
    fail(open.span, event, hrTime(endedAt));
    open.span.end(hrTime(endedAt));
  }

  /** Returns when the last stage ended. */
  private tellStages(event: CallEndEvent, open: OpenCall): number {
    let at = open.startedAt;
    for (const [stage, name] of stages) {
      const isLast = stage === event.stage;
      const links = stage === 'running' ? open.batches.map(linkTo) : [];
      const attributes = { 'serving.name': event.serving, ...(isLast ? outcomeOf(event) : {}) };
      const span = this.tracer.startSpan(
        `${name} ${event.serving}`,
        { attributes, links, startTime: hrTime(at) },
        open.context,
      );
      at += event[stage];
      if (isLast && hasFailed(event)) {
        span.setStatus({ code: SpanStatusCode.ERROR });
      }
      span.end(hrTime(at));
      if (isLast) {
        break;
      }
    }
    return at;
  }

  private batchStarted(event: BatchStartEvent): void {
    const members = event.calls.flatMap(
      (call) => this.calls.get(callId(event.serving, call)) ?? [],
    );
    const links = members.map(({ span }) => linkTo(span.spanContext()));
    const span = this.tracer.startSpan(`batch ${event.serving}`, {
      root: true,
      attributes: batchAttributes(event),
      links,
    });
    members.forEach(({ batches }) => batches.push(span.spanContext()));
    this.batches.set(batchId(event), span);
  }

  private batchEnded(event: BatchEndEvent): void {
    const id = batchId(event);
    const span = this.batches.get(id);
    this.batches.delete(id);
    const revoked = event.revoked && { 'serving.batch.revoked': true };
    span?.setAttributes({ ...batchEndAttributes(event), ...outcomeOf(event), ...revoked });
    fail(span, event);
    span?.end();
  }
}

function fail(span: Span | undefined, event: CallEndEvent | BatchEndEvent, time?: HrTime): void {
  if (hasFailed(event)) {
    const { error } = event;
    span?.recordException(isError(error) ? error : messageOf(error), time);
    span?.setStatus({ code: SpanStatusCode.ERROR, message: messageOf(error) });
  }
}

function linkTo(spanContext: SpanContext): Link {
  return { context: spanContext };
}

function callId(serving: string, call: number): string {
  return `${serving}\0${call}`;
}

/** Methods of equal names may have equal batch numbers. */
function batchId({ serving, batch, calls: [first] }: BatchStartEvent | BatchEndEvent): string {
  return `${serving}\0${batch}\0${first}`;
}

/** An SDK could take a number for a `performance.now()`; a Date has no microseconds. */
function hrTime(milliseconds: number): HrTime {
  const seconds = Math.floor(milliseconds / 1000);
  return [seconds, Math.floor((milliseconds - seconds * 1000) * 1e6)];
}
