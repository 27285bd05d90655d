import { EventEmitter } from 'node:events';
import { describe, expect, it } from '@jest/globals';
import { sharedListener } from '../../../lib/core/context/call-context.js';

const onClose = sharedListener<EventEmitter>((source, callback) => {
  source.on('close', callback);
  return () => source.off('close', callback);
});

describe('A shared listener', () => {
  it('One listener on a source serves all subscribers, and each is notified once', () => {
    const [source, called] = [new EventEmitter(), [] as number[]];

    [1, 2, 3].forEach((each) => onClose(source, () => called.push(each)));

    expect(source.listenerCount('close')).toBe(1);
    source.emit('close');
    source.emit('close');
    expect(called).toEqual([1, 2, 3]);
    expect(source.listenerCount('close')).toBe(0);
  });

  it('The listener is removed with the last subscriber, in any order of leaving', () => {
    const [source, called] = [new EventEmitter(), [] as string[]];
    const stops = ['a', 'b', 'c'].map((each) => onClose(source, () => called.push(each)));

    stops[1]!();
    expect(source.listenerCount('close')).toBe(1);
    stops[0]!();
    stops[2]!();

    expect(source.listenerCount('close')).toBe(0);
    source.emit('close');
    expect(called).toEqual([]);
  });

  it('A callback that subscribes twice counts as two subscribers, and unsubscribing twice counts once', () => {
    const [source, called] = [new EventEmitter(), [] as string[]];
    const note = (): unknown => called.push('called');
    const stop = onClose(source, note);
    onClose(source, note);

    stop();
    stop();
    source.emit('close');

    expect(called).toEqual(['called']);
  });

  it('A source that emitted can be subscribed to again, and old unsubscribe functions do not affect new subscribers', () => {
    const [source, called] = [new EventEmitter(), [] as string[]];
    const old = onClose(source, () => called.push('first'));
    source.emit('close');

    onClose(source, () => called.push('second'));
    old();
    onClose(source, () => called.push('third'));
    expect(source.listenerCount('close')).toBe(1);
    source.emit('close');

    expect(called).toEqual(['first', 'second', 'third']);
  });

  it('Each source has a listener of its own', () => {
    const [one, other, called] = [new EventEmitter(), new EventEmitter(), [] as string[]];
    onClose(one, () => called.push('one'));
    onClose(other, () => called.push('other'));

    other.emit('close');

    expect(called).toEqual(['other']);
  });
});
