import { fileURLToPath } from 'node:url';
import type { ChannelOptions } from '@grpc/grpc-js';
import type { GrpcOptions } from '@nestjs/microservices';

/** What both sides say of the service. */
export const service = {
  package: 'nestjs_serving',
  protoPath: fileURLToPath(new URL('./link.proto', import.meta.url)),
  loader: {},
} satisfies Partial<GrpcOptions['options']>;

/** Those of both sides that are not about the service. */
export interface GrpcSide {
  readonly channelOptions: ChannelOptions;
  readonly keepalive?: GrpcOptions['options']['keepalive'];
}
