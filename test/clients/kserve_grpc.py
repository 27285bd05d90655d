"""Calls a server with the gRPC client of KServe, and prints what it got as JSON.

    python kserve_grpc.py host:port
"""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceGRPCClient, InferInput, InferRequest


async def main():
    client = InferenceGRPCClient(url=sys.argv[1], timeout=20, retries=0)
    seen = {"live": await client.is_server_live(), "ready": await client.is_server_ready()}
    seen["model_ready"] = await client.is_model_ready("digits")
    for raw in [True, False]:
        images = np.random.default_rng(1).random((3, 784), dtype=np.float32)
        image = InferInput("image", list(images.shape), "FP32")
        image.set_data_from_numpy(images, binary_data=raw)
        reply = await client.infer(InferRequest("digits", [image]))
        (output,) = reply.outputs
        sums = output.as_numpy().sum(axis=1)
        seen[f"infer {raw}"] = [output.name, list(output.shape), bool(np.allclose(sums, 1, atol=1e-4))]
    await client.close()
    print(json.dumps(seen))


asyncio.run(main())
