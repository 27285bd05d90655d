"""Calls a server with the gRPC client of Triton, and prints what it got as JSON.

    python triton_grpc.py host:port
"""

import json
import queue
import sys

import ml_dtypes
import numpy as np
import tritonclient.grpc as grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

client = grpc.InferenceServerClient(sys.argv[1])
seen = {}


def tensor(name, array, datatype):
    given = grpc.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


def failure(call):
    try:
        call()
    except InferenceServerException as error:
        return [error.status(), error.message()]


seen["live"] = client.is_server_live()
seen["ready"] = client.is_server_ready()
seen["model_ready"] = client.is_model_ready("digits")
seen["server"] = client.get_server_metadata(as_json=True)["name"]
metadata = client.get_model_metadata("digits", "1")
seen["metadata"] = [metadata.platform, [list(each.shape) for each in metadata.inputs]]
config = client.get_model_config("digits").config
seen["config"] = [config.max_batch_size, list(config.input[0].dims), config.input[0].data_type]
seen["index"] = sorted(each.name for each in client.get_model_repository_index().models)[:2]

images = np.random.default_rng(1).random((5, 784), dtype=np.float32)
result = client.infer("digits", [tensor("image", images, "FP32")], request_id="a")
expected = result.as_numpy("probabilities")
seen["rows"] = [list(expected.shape), result.get_response().id]
seen["sums"] = bool(np.allclose(expected.sum(axis=1), 1, atol=1e-4))
seen["compressed"] = {
    algorithm: bool(
        np.allclose(
            client.infer(
                "digits", [tensor("image", images, "FP32")], compression_algorithm=algorithm
            ).as_numpy("probabilities"),
            expected,
            atol=1e-6,
        )
    )
    for algorithm in ["gzip", "deflate"]
}

types = {}
for datatype in "BOOL INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FP16 FP32 FP64".split():
    dtype = triton_to_np_dtype(datatype)
    array = np.array([[0, 1], [1, 0]], dtype=dtype)
    if np.issubdtype(dtype, np.integer):
        array[0, 0] = np.iinfo(dtype).max
    name = dict(
        BOOL="bool", FP16="float16", FP32="float32", FP64="float64"
    ).get(datatype, datatype.lower())
    same = client.infer(name, [tensor("x", array, datatype)]).as_numpy("x")
    types[datatype] = bool(same.dtype == array.dtype and (same == array).all())
texts = np.array([["a", ""], ["zwölf", "ßx"]], dtype=object)
same = client.infer("string", [tensor("x", texts, "BYTES")]).as_numpy("x")
types["BYTES"] = [each.decode() for each in same.flatten()] == list(texts.flatten())
halves = np.array([[0.5, -2.0]], dtype=ml_dtypes.bfloat16)
same = client.infer("float32", [tensor("x", halves, "BF16")]).as_numpy("x")
types["BF16"] = bool((same == np.array([[0.5, -2.0]], dtype=np.float32)).all())
seen["types"] = types


def step(value, sequence, start=False, end=False):
    return client.infer(
        "sums",
        [tensor("n", np.array([value], dtype=np.int32), "INT32")],
        sequence_id=sequence,
        sequence_start=start,
        sequence_end=end,
    ).as_numpy("sum").tolist()[0]


seen["sequence"] = [
    step(1, 7, start=True),
    step(4, "seven", start=True),
    step(2, 7, end=True),
    failure(lambda: step(1, 7)),
]
seen["parameters"] = list(
    client.infer(
        "digits", [tensor("image", images, "FP32")], priority=1, timeout=5_000_000
    ).as_numpy("probabilities").shape
)
seen["errors"] = [
    failure(lambda: client.infer("nix", [tensor("image", images, "FP32")])),
    failure(lambda: client.infer("digits", [tensor("image", images[:, :783], "FP32")])),
    failure(lambda: client.infer("digits", [tensor("x", images, "FP32")])),
    failure(lambda: client.infer("slow", [tensor("n", np.array([1], dtype=np.int32), "INT32")], client_timeout=0.1)),
    failure(lambda: client.load_model("digits")),
    failure(lambda: client.register_system_shared_memory("a", "b", 1)),
]


def stream(requests, answers, model, **options):
    """The replies to requests on one stream: values and flags, or errors."""
    found = queue.Queue()
    client.start_stream(lambda result, error: found.put((result, error)))
    for n, request_id in requests:
        given = [tensor("n", np.array([n], dtype=np.int32), "INT32")]
        client.async_stream_infer(model, given, request_id=request_id, **options)
    got = []
    for _ in range(answers):
        result, error = found.get(timeout=20)
        if error:
            got.append(["error", error.message()])
            continue
        response = result.get_response()
        final = response.parameters["triton_final_response"].bool_param
        values = [result.as_numpy(each.name).tolist()[0] for each in response.outputs]
        got.append([response.id, values, final])
    client.stop_stream()
    return got


seen["streams"] = {
    "single": stream([(3, "a"), (1, "b"), (2, "c")], 3, "waits"),
    "decoupled": stream([(2, "a")], 3, "count", enable_empty_final_response=True),
    "without end": stream([(2, "a")], 2, "count"),
    "error": stream([(-1, "a"), (2, "b")], 2, "waits"),
}
statistics = client.get_inference_statistics("digits", as_json=True)["model_stats"][0]
seen["statistics"] = [statistics["name"], int(statistics["inference_count"]) > 0]
print(json.dumps(seen))
