"""Calls a server with the REST client of KServe, and prints what it got as JSON.

    python kserve_rest.py http://host:port
"""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig


def request(model, name, array, datatype, binary):
    given = InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array, binary_data=binary)
    parameters = {"binary_data_output": binary}
    return InferRequest(model, [given], parameters=parameters)


async def failure(call):
    try:
        await call
    except Exception as error:
        return str(error)


async def main(url):
    client = InferenceRESTClient(RESTConfig(protocol="v2", timeout=20))
    images = np.random.default_rng(1).random((3, 784), dtype=np.float32)
    seen = {
        "live": await client.is_server_live(url),
        "ready": await client.is_server_ready(url),
        "model_ready": await client.is_model_ready(url, "digits"),
    }
    for binary in [True, False]:
        response = await client.infer(
            url, request("digits", "image", images, "FP32", binary), model_name="digits"
        )
        output = response.outputs[0]
        array = output.as_numpy()
        seen[f"infer {binary}"] = [
            response.model_name,
            output.name,
            list(array.shape),
            bool(np.allclose(array.sum(axis=1), 1, atol=1e-4)),
        ]
    # Larger than the limit that the parser of an application has for JSON.
    large = await client.infer(
        url, request("digits", "image", np.tile(images, (40, 1)), "FP32", False), model_name="digits"
    )
    seen["large"] = list(large.outputs[0].as_numpy().shape)
    text = np.array([b"one", "zwölf".encode()], dtype=object)
    texts = await client.infer(url, request("upper", "text", text, "BYTES", False), model_name="upper")
    seen["texts"] = [str(each) for each in texts.outputs[0].data]
    seen["errors"] = [
        await failure(
            client.infer(url, request("nix", "image", images, "FP32", True), model_name="nix")
        ),
        await failure(
            client.infer(url, request("digits", "x", images, "FP32", False), model_name="digits")
        ),
    ]
    await client.close()
    print(json.dumps(seen))


asyncio.run(main(sys.argv[1]))
