"""A model of numpy for tests: it doubles rows, counts batches, and fails, waits or ends on request."""

import asyncio
import os

import numpy as np
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse

FAIL = -1.0
WAIT = -2.0
EXIT = -3.0


class Double(MLModel):
    async def load(self) -> bool:
        self.batches = 0
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        self.batches += 1
        batch = self.batches
        first = rows[:, 0]
        if (first == FAIL).any():
            raise ValueError("a row is -1")
        if (first == EXIT).any():
            os._exit(3)
        if payload.parameters:
            log(f"parameters {payload.parameters.model_dump()}")
        if (first == WAIT).any():
            log("waits")
            try:
                await asyncio.sleep(30)
            finally:
                log("left")
        of_batch = np.tile(np.array([batch, len(rows)], dtype=np.int64), (len(rows), 1))
        return InferenceResponse(
            model_name=self.name,
            outputs=[
                NumpyCodec.encode_output("y", rows * 2),
                NumpyCodec.encode_output("batch", of_batch),
            ],
        )


def log(line: str) -> None:
    print(line, flush=True)
