import { fileURLToPath } from 'node:url';
import type { ChannelOptions } from '@grpc/grpc-js';
import type { GrpcOptions } from '@nestjs/microservices';

/** The definition of the service, for both sides. */
export const service = {
  package: 'nestjs_serving',
  protoPath: fileURLToPath(new URL('./link.proto', import.meta.url)),
  loader: {},
} satisfies Partial<GrpcOptions['options']>;

/** Options of both sides that are not about the service. */
export interface GrpcSide {
  readonly channelOptions: ChannelOptions;
  readonly keepalive?: GrpcOptions['options']['keepalive'];
}
