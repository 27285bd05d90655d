"""LitServe: its own batching, batches of at most 32 rows, a window of 5 ms, one worker."""

import os

import litserve
from model import Model


class Api(litserve.LitAPI):
    def setup(self, device):
        self.model = Model()

    def decode_request(self, request):
        return request["input"]

    def batch(self, inputs):
        return inputs

    def predict(self, rows):
        # A row that is alone comes without its batch.
        return self.model(rows) if isinstance(rows[0], list) else self.model([rows])[0]

    def unbatch(self, outputs):
        return outputs

    def encode_response(self, index):
        return {"index": index}


if __name__ == "__main__":
    api = Api(max_batch_size=32, batch_timeout=0.005, api_path="/predict")
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1",
        port=int(os.environ["PORT"]),
        generate_client_file=False,
        log_level="warning",
    )
