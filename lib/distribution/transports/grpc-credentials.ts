import { type ConnectionOptions, createSecureContext, type TlsOptions } from 'node:tls';
import { ChannelCredentials } from '@grpc/grpc-js';

/** What Node's `tls` takes, as gRPC takes it of who dials. */
export function channelCredentials(options: TlsOptions & ConnectionOptions): ChannelCredentials {
  const { checkServerIdentity, rejectUnauthorized } = options;
  return ChannelCredentials.createFromSecureContext(createSecureContext(options), {
    ...(checkServerIdentity && { checkServerIdentity }),
    ...(rejectUnauthorized !== undefined && { rejectUnauthorized }),
  });
}
