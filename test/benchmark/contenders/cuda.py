"""The baseline of P28: onnxruntime in Python on CUDA. For a line with a way, a number of rows and a
number of runs it writes the seconds that the runs of one prepared batch take."""

import sys
import time

import numpy
import onnxruntime

path, *row_shape = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(path, options, providers=["CUDAExecutionProvider"])
# Without its libraries it would run on the CPU.
assert session.get_providers()[0] == "CUDAExecutionProvider"
feed, fetch = session.get_inputs()[0].name, session.get_outputs()[0].name
random = numpy.random.default_rng(1)


def copied(batch):
    """The batch is copied to the device and its results back, as in Node."""
    return lambda: session.run(None, {feed: batch})


def bound(batch):
    """Input and output stay on the device."""
    value = onnxruntime.OrtValue.ortvalue_from_numpy(batch, "cuda", 0)
    binding = session.io_binding()
    binding.bind_ortvalue_input(feed, value)
    binding.bind_output(fetch, "cuda")

    def run():
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return run


ways = {"copied": copied, "bound": bound}
print("ready", flush=True)
for line in sys.stdin:
    way, rows, runs = line.split()
    shape = [int(rows), *map(int, row_shape)]
    run = ways[way](random.uniform(-1, 1, shape).astype("float32"))
    run()
    start = time.perf_counter()
    for _ in range(int(runs)):
        run()
    print(time.perf_counter() - start, flush=True)
