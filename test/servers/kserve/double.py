"""A model of KServe for tests: it doubles rows."""

import sys

from kserve import InferOutput, InferResponse, Model, ModelServer


class Double(Model):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ready = True

    async def get_input_types(self):
        return [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]

    async def get_output_types(self):
        return [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}]

    async def predict(self, payload, headers=None, response_headers=None):
        rows = payload.inputs[0].as_numpy()
        output = InferOutput("y", list(rows.shape), "FP32")
        output.set_data_from_numpy(rows * 2, binary_data=False)
        return InferResponse(response_id=payload.id, model_name=self.name, infer_outputs=[output])


if __name__ == "__main__":
    http_port, grpc_port = map(int, sys.argv[1:])
    ModelServer(http_port=http_port, grpc_port=grpc_port, workers=1).start([Double("double")])
