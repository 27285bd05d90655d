"""Calls a server with the HTTP client of Triton, and prints what it got as JSON.

    python triton_http.py host:port[/prefix]
"""

import json
import sys

import ml_dtypes
import numpy as np
import tritonclient.http as http
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

client = http.InferenceServerClient(sys.argv[1], concurrency=4)
seen = {}


def tensor(name, array, datatype, binary=True):
    given = http.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    return given


def failure(call):
    try:
        call()
    except InferenceServerException as error:
        return [error.status(), error.message()]


seen["live"] = client.is_server_live()
seen["ready"] = client.is_server_ready()
seen["model_ready"] = client.is_model_ready("digits")
seen["unknown_ready"] = client.is_model_ready("nix")
seen["server"] = client.get_server_metadata()
seen["metadata"] = client.get_model_metadata("digits", "1")
seen["config"] = client.get_model_config("digits")
seen["index"] = client.get_model_repository_index()

images = np.random.default_rng(1).random((5, 784), dtype=np.float32)
expected = client.infer("digits", [tensor("image", images, "FP32")]).as_numpy("probabilities")
seen["rows"] = list(expected.shape)
seen["sums"] = bool(np.allclose(expected.sum(axis=1), 1, atol=1e-4))
forms = {}
for given in [True, False]:
    for wanted in [True, False]:
        outputs = [http.InferRequestedOutput("probabilities", binary_data=wanted)]
        result = client.infer(
            "digits", [tensor("image", images, "FP32", given)], outputs=outputs, request_id="a"
        )
        same = np.allclose(result.as_numpy("probabilities"), expected, atol=1e-6)
        forms[f"{given} {wanted}"] = [bool(same), result.get_response()["id"]]
seen["forms"] = forms
seen["compressed"] = {
    f"{sent} {got}": bool(
        np.allclose(
            client.infer(
                "digits",
                [tensor("image", images, "FP32")],
                request_compression_algorithm=sent,
                response_compression_algorithm=got,
            ).as_numpy("probabilities"),
            expected,
            atol=1e-6,
        )
    )
    for sent in [None, "gzip", "deflate"]
    for got in [None, "gzip", "deflate"]
}
seen["async"] = [
    list(each.get_result().as_numpy("probabilities").shape)
    for each in [
        client.async_infer("digits", [tensor("image", images[:rows], "FP32")]) for rows in [1, 2, 3]
    ]
]

samples = {
    "bool": np.array([[True, False, True]]),
    "string": np.array([[b"", "größer".encode(), b"a\x00b"]], dtype=object),
    "float16": np.array([[0.5, -np.inf, 65504]], dtype=np.float16),
    "float32": np.array([[0.5, np.nan, -0.0]], dtype=np.float32),
    "float64": np.array([[0.1, -1e300, np.inf]], dtype=np.float64),
}
for bits in [8, 16, 32, 64]:
    for kind in ["int", "uint"]:
        limits = np.iinfo(f"{kind}{bits}")
        samples[f"{kind}{bits}"] = np.array([[limits.min, limits.max, 1]], dtype=f"{kind}{bits}")
types = {}
for model, array in samples.items():
    datatype = client.get_model_metadata(model)["inputs"][0]["datatype"]
    for binary in [True, False] if datatype != "FP16" else [True]:
        # JSON of Python has no infinite numbers that other parsers read.
        if not binary and datatype in ("FP32", "FP64"):
            array = np.array([[1.5, -2, 3]], dtype=triton_to_np_dtype(datatype))
        given = array
        if not binary and datatype in ("INT64", "UINT64"):
            given = array = np.array([[0, 2**53 - 1, 1]], dtype=array.dtype)
        result = client.infer(model, [tensor("x", given, datatype, binary)]).as_numpy("x")
        types[f"{datatype} {binary}"] = bool(
            result.dtype == array.dtype
            and np.array_equal(result, array, equal_nan=datatype.startswith("FP"))
        )
brain = np.array([[1.5, -2, 3]], dtype=ml_dtypes.bfloat16)
result = client.infer("float32", [tensor("x", brain, "BF16")]).as_numpy("x")
types["BF16 True"] = bool(np.array_equal(result, brain.astype(np.float32)))
seen["types"] = types

text = np.array(["one", "zwölf"], dtype=object)
seen["texts"] = [
    each.decode() for each in client.infer("upper", [tensor("text", text, "BYTES")]).as_numpy("up")
]

number = lambda n: [tensor("n", np.array([n], dtype=np.int32), "INT32")]
total = lambda **options: int(
    client.infer("sums", number(options.pop("n")), **options).as_numpy("sum")[0]
)
seen["sequence"] = [
    total(n=1, sequence_id=2**40, sequence_start=True),
    total(n=5, sequence_id="other", sequence_start=True),
    total(n=2, sequence_id=2**40),
    total(n=3, sequence_id=2**40, sequence_end=True),
    failure(lambda: total(n=3, sequence_id=2**40)),
]

seen["parameters"] = list(
    client.infer(
        "digits",
        [tensor("image", images, "FP32")],
        priority=1,
        timeout=60_000_000,
        parameters={"own": "value"},
    )
    .as_numpy("probabilities")
    .shape
)
seen["errors"] = [
    failure(lambda: client.infer("nix", [tensor("image", images, "FP32")])),
    failure(lambda: client.infer("digits", [tensor("image", images[:, 1:], "FP32")])),
    failure(lambda: client.infer("digits", [tensor("x", images, "FP32")])),
    failure(lambda: client.infer("digits", [tensor("image", images.astype(np.float64), "FP64")])),
    failure(
        lambda: client.infer(
            "digits",
            [tensor("image", images, "FP32")],
            outputs=[http.InferRequestedOutput("probabilities", class_count=3)],
        )
    ),
    failure(lambda: client.get_system_shared_memory_status()),
    failure(lambda: client.unload_model("digits")),
    failure(lambda: client.get_model_config("digits", "7")),
]
statistics = client.get_inference_statistics("digits")["model_stats"][0]
seen["statistics"] = {
    "version": statistics["version"],
    "fields": sorted(statistics["inference_stats"]),
    "rows": statistics["inference_count"],
    "all": len(client.get_inference_statistics()["model_stats"]),
}
client.close()
print(json.dumps(seen))
