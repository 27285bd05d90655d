"""sentence-transformers (ONNX): a call of the model per request, in FastAPI's pool of threads."""

import os

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer


class Request(BaseModel):
    model: str
    input: str


app = FastAPI()
# Without files that say how to pool, it takes the mean.
model = SentenceTransformer(
    os.environ["MODEL"],
    backend="onnx",
    device="cpu",
    model_kwargs={"file_name": "onnx/model.onnx", "provider": "CPUExecutionProvider"},
)


# Not async, so that it runs in a thread of the pool.
@app.post("/v1/embeddings")
def embed(request: Request):
    vector = model.encode(request.input, normalize_embeddings=True, show_progress_bar=False)
    embedding = {"object": "embedding", "index": 0, "embedding": vector.tolist()}
    return {"object": "list", "model": request.model, "data": [embedding]}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["PORT"]), access_log=False, log_level="warning")
