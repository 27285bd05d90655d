"""FastAPI, batched by hand: a queue, a window of 5 ms, batches of at most 32 rows in one thread."""

import asyncio
import os
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from model import Model
from pydantic import BaseModel


class Request(BaseModel):
    input: list[float]


class Batcher:
    def __init__(self, size, window):
        self._size, self._window = size, window
        self._model = Model()
        self._queue = asyncio.Queue()

    async def __call__(self, row):
        reply = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((row, reply))
        return await reply

    async def run(self):
        while True:
            batch = await self._collect()
            rows = [row for row, _ in batch]
            outputs = await asyncio.to_thread(self._model, rows)
            for (_, reply), output in zip(batch, outputs):
                if not reply.done():
                    reply.set_result(output)

    async def _collect(self):
        batch = [await self._queue.get()]
        try:
            async with asyncio.timeout(self._window):
                while len(batch) < self._size:
                    batch.append(await self._queue.get())
        except TimeoutError:
            pass
        return batch


@asynccontextmanager
async def lifespan(app):
    app.state.batcher = Batcher(size=32, window=0.005)
    running = asyncio.create_task(app.state.batcher.run())
    yield
    running.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/predict")
async def predict(request: Request):
    return {"index": await app.state.batcher(request.input)}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["PORT"]), access_log=False, log_level="warning")
