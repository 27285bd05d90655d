"""Ray Serve: @serve.batch, batches of at most 32 rows, a window of 5 ms, one replica."""

import os
import signal

import ray
from model import Model
from ray import serve


# By default a replica takes 5 requests at a time, and no batch would have more rows.
@serve.deployment(max_ongoing_requests=256, logging_config={"enable_access_log": False})
class Predictor:
    def __init__(self):
        self.model = Model()

    @serve.batch(max_batch_size=32, batch_wait_timeout_s=0.005)
    async def predict(self, rows):
        return self.model(rows)

    async def __call__(self, request):
        return {"index": await self.predict((await request.json())["input"])}


if __name__ == "__main__":
    shared = {name: os.environ[name] for name in ("MODEL", "PEER", "PYTHONPATH")}
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": shared},
    )
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(os.environ["PORT"])},
        logging_config={"enable_access_log": False},
    )
    serve.run(Predictor.bind(), route_prefix="/predict")
    signal.sigwait({signal.SIGTERM})
    serve.shutdown()
    ray.shutdown()
