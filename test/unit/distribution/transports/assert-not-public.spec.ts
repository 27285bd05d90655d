import { expect, it } from '@jest/globals';
import { assertNotPublic } from '../../../../lib/extensions/distribution/transports/peers.js';
import { InvalidServingError } from 'nestjs-serving';

const none = { insecure: false };

it.each(['0.0.0.0', '::', '10.0.0.1', 'example.org', '127.0.0.1.example.org', '1127.0.0.1', ''])(
  '[11] Listening on %j without protection is refused',
  (host) => {
    expect(() => assertNotPublic(host, none)).toThrow(InvalidServingError);
    expect(() => assertNotPublic(host, { ...none, secret: '' })).toThrow(InvalidServingError);
    expect(() => assertNotPublic(host, { ...none, tlsOptions: {} })).toThrow(InvalidServingError);
    expect(() =>
      assertNotPublic(host, {
        ...none,
        tlsOptions: { requestCert: true, rejectUnauthorized: false },
      }),
    ).toThrow(/secret, or certificates of both sides .* 127\.0\.0\.1, or say insecure: true/);
  },
);

it.each(['127.0.0.1', '127.1.2.3', '::1', 'localhost'])(
  '[11] Listening on %s needs no protection',
  (host) => {
    expect(() => assertNotPublic(host, none)).not.toThrow();
  },
);

it.each([
  ['a secret', { ...none, secret: 's' }],
  ['certificates of both sides', { ...none, tlsOptions: { requestCert: true } }],
  ['the option insecure', { insecure: true }],
])('[11] With %s a node may listen on any address', (_, protection) => {
  expect(() => assertNotPublic('0.0.0.0', protection)).not.toThrow();
});
