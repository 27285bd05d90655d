import { describe, expect, it } from '@jest/globals';
import { nearestTopic } from '../../../sample/07-production/src/nearest-topic.js';
import { canaryOf, digestOf, tenantsOf } from '../../../sample/07-production/src/settings.js';

const example = (topic: string, text: string, ...vector: number[]) => ({
  topic,
  text,
  vector: Float32Array.from(vector),
});
describe('nearestTopic', () => {
  const examples = [
    example('billing', 'far', 0, 1),
    example('delivery', 'farther', -1, 0),
    example('billing', 'near', 1, 0),
    example('delivery', 'nearer', 0.6, 0.8),
  ];

  it('The topic is that of the nearest example, whatever its other examples are', () => {
    const vector = Float32Array.of(1, 0);
    expect(nearestTopic(vector, examples)).toMatchObject({ topic: 'billing', example: 'near' });

    const other = Float32Array.of(0.6, 0.8);
    expect(nearestTopic(other, examples)).toMatchObject({ topic: 'delivery', example: 'nearer' });
  });

  it('The confidence is the softmax of the best similarities of the topics', () => {
    const { confidence } = nearestTopic(Float32Array.of(1, 0), examples);

    expect(confidence).toBeCloseTo(1 / (1 + Math.exp(20 * (0.6 - 1))), 6);
  });

  it('Two topics at the same distance have a confidence of a half', () => {
    const same = [example('a', 'one', 1, 0), example('b', 'other', 1, 0)];

    expect(nearestTopic(Float32Array.of(1, 0), same).confidence).toBe(0.5);
  });
});

describe('tenantsOf', () => {
  it('Each key belongs to its tenant, and a tenant may have several', () => {
    const tenants = tenantsOf(
      'acme:first-key-of-acme, globex:the-key-of-globex,acme:next:key-of-acme',
    );

    expect(tenants).toEqual(
      new Map([
        [digestOf('first-key-of-acme'), 'acme'],
        [digestOf('the-key-of-globex'), 'globex'],
        [digestOf('next:key-of-acme'), 'acme'],
      ]),
    );
  });

  it.each([
    undefined,
    '',
    'acme',
    'acme:short',
    ':a-key-of-16-characters',
    'a b:a-key-of-16-chars',
  ])('The keys %j are refused', (keys) => {
    expect(() => tenantsOf(keys)).toThrow('Set API_KEYS to tenant:key');
  });
});

describe('canaryOf', () => {
  it('A canary is a version and its per cent of the tenants', () => {
    expect(canaryOf('july:10')).toEqual({ version: 'july', percent: 10 });
    expect(canaryOf('v2.1-int8:100')).toEqual({ version: 'v2.1-int8', percent: 100 });
    expect(canaryOf('')).toBeUndefined();
    expect(canaryOf(undefined)).toBeUndefined();
  });

  it.each(['july', 'july:', ':10', 'july:101', 'july:1e1', '../june:10', 'a/b:10', '.hidden:10'])(
    'The canary "%s" is refused',
    (canary) => {
      expect(() => canaryOf(canary)).toThrow(
        `Set CANARY to version:percent, such as july:10, not "${canary}"`,
      );
    },
  );
});
