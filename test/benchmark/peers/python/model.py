"""The model of all Python servers: rows in, the place of each largest output out."""

import os

import numpy as np
import onnxruntime


class Model:
    def __init__(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(os.environ["MODEL"], options)
        self._input = self._session.get_inputs()[0].name

    def __call__(self, rows):
        feeds = {self._input: np.asarray(rows, dtype=np.float32)}
        return self._session.run(None, feeds)[0].argmax(axis=1).tolist()
