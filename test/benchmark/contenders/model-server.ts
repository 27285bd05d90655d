import { type sendUnaryData, Server, ServerCredentials, type ServerUnaryCall } from '@grpc/grpc-js';
import { loadPackageDefinition, type ServiceClientConstructor } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';

/** A process: a server of the Open Inference Protocol whose model gives 8 bytes for each row. */

interface Request {
  readonly inputs: readonly [{ readonly shape: readonly [string, string] }];
  readonly raw_input_contents: readonly [Buffer];
}

const definition = loadSync('lib/extensions/inference-protocol/wire/inference.proto', {
  keepCase: true,
  longs: String,
});
const { inference } = loadPackageDefinition(definition) as unknown as {
  readonly inference: { readonly GRPCInferenceService: ServiceClientConstructor };
};
const port = (name: string) => ({ name, datatype: 'UINT8', shape: [-1, -1] });

const server = new Server({ 'grpc.max_receive_message_length': -1 });
server.addService(inference.GRPCInferenceService.service, {
  ModelReady: (_: unknown, reply: sendUnaryData<object>) => reply(null, { ready: true }),
  ModelMetadata: (_: unknown, reply: sendUnaryData<object>) =>
    reply(null, { inputs: [port('x')], outputs: [port('y')] }),
  ModelInfer: ({ request }: ServerUnaryCall<Request, object>, reply: sendUnaryData<object>) => {
    const [rows] = request.inputs[0].shape;
    reply(null, {
      outputs: [{ name: 'y', datatype: 'UINT8', shape: [rows, 8] }],
      raw_output_contents: [request.raw_input_contents[0].subarray(0, 8 * Number(rows))],
    });
  },
});
server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (_, bound) =>
  process.send!(bound),
);
process.once('disconnect', () => server.forceShutdown());
