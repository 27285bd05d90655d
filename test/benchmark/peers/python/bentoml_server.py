"""BentoML: its adaptive batching, batches of at most 32 rows, one worker."""

import bentoml
import numpy as np
from model import Model


@bentoml.service(workers=1, logging={"access": {"enabled": False}})
class Predictor:
    def __init__(self):
        self.model = Model()

    # Requests that would wait longer than max_latency_ms get an error.
    @bentoml.api(batchable=True, max_batch_size=32, max_latency_ms=10_000)
    def predict(self, input: np.ndarray) -> list[int]:
        return self.model(input)
