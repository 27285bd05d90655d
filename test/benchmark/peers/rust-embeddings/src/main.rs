//! axum, tokenizers and ort: the blocking pool tokenizes, and one thread runs the model on batches of
//! similar length, within a budget of padded tokens.
use axum::{extract::State, http::StatusCode, routing::post, Json, Router};
use ort::{inputs, session::Session, value::TensorRef};
use serde::{Deserialize, Serialize};
use std::{
    env,
    path::Path,
    sync::{mpsc, Arc},
    thread,
};
use tokenizers::Tokenizer;
use tokio::sync::oneshot;

/// As in nestjs-serving.
const MOST_TOKENS: usize = 512;
const MOST_ROWS: usize = 64;
/// Batches that may pass a text.
const MOST_PASSES: usize = 32;

#[derive(Deserialize)]
struct Request {
    model: String,
    input: String,
}

#[derive(Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Serialize)]
struct Reply {
    object: &'static str,
    model: String,
    data: [Embedding; 1],
}

struct Text {
    ids: Vec<i64>,
    passed: usize,
    reply: oneshot::Sender<Vec<f32>>,
}

#[derive(Clone)]
struct Embedder {
    tokenizer: Arc<Tokenizer>,
    queue: mpsc::Sender<Text>,
}

impl Embedder {
    async fn embed(&self, text: String) -> Result<Vec<f32>, StatusCode> {
        let tokenizer = Arc::clone(&self.tokenizer);
        let encoding = tokio::task::spawn_blocking(move || tokenizer.encode_fast(text, true))
            .await
            .map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?
            .map_err(|_| StatusCode::BAD_REQUEST)?;
        let ids = encoding.get_ids().iter().map(|&id| i64::from(id)).collect();
        let (reply, answer) = oneshot::channel();
        let text = Text { ids, passed: 0, reply };
        self.queue.send(text).map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
        answer.await.map_err(|_| StatusCode::SERVICE_UNAVAILABLE)
    }
}

/// The oldest text, and those of the nearest lengths; the longest first once a text was passed often.
fn next_batch(waiting: &mut Vec<Text>) -> Vec<Text> {
    let oldest = waiting[0].ids.len();
    let mut order: Vec<usize> = (0..waiting.len()).collect();
    order.sort_by_key(|&at| {
        let text = &waiting[at];
        (at > 0 && text.passed < MOST_PASSES, text.ids.len().abs_diff(oldest))
    });
    let mut longest = 0;
    let mut taken = vec![false; waiting.len()];
    let mut rows = 0;
    for at in order {
        let length = longest.max(waiting[at].ids.len());
        if rows == MOST_ROWS || (rows > 0 && length * (rows + 1) > MOST_TOKENS) {
            break;
        }
        longest = length;
        rows += 1;
        taken[at] = true;
    }
    let (batch, others): (Vec<_>, Vec<_>) =
        waiting.drain(..).zip(taken).partition(|(_, is_taken)| *is_taken);
    *waiting = others.into_iter().map(|(text, _)| Text { passed: text.passed + 1, ..text }).collect();
    batch.into_iter().map(|(text, _)| text).collect()
}

/// The mean of each text's vectors, of length 1.
fn run(session: &mut Session, batch: &[Text]) -> ort::Result<Vec<Vec<f32>>> {
    let length = batch.iter().map(|text| text.ids.len()).max().unwrap_or_default();
    let shape = [batch.len(), length];
    let mut ids = vec![0i64; batch.len() * length];
    let mut mask = vec![0i64; batch.len() * length];
    for (row, text) in batch.iter().enumerate() {
        let place = row * length..row * length + text.ids.len();
        ids[place.clone()].copy_from_slice(&text.ids);
        mask[place].fill(1);
    }
    let types = vec![0i64; batch.len() * length];
    let outputs = session.run(inputs![
        "input_ids" => TensorRef::from_array_view((shape, ids.as_slice()))?,
        "attention_mask" => TensorRef::from_array_view((shape, mask.as_slice()))?,
        "token_type_ids" => TensorRef::from_array_view((shape, types.as_slice()))?,
    ])?;
    let (_, hidden) = outputs[0].try_extract_tensor::<f32>()?;
    let width = hidden.len() / (batch.len() * length);
    Ok(batch
        .iter()
        .zip(hidden.chunks(length * width))
        .map(|(text, vectors)| pooled(&vectors[..text.ids.len() * width], width))
        .collect())
}

/// The length takes out what the mean would divide by.
fn pooled(vectors: &[f32], width: usize) -> Vec<f32> {
    let mut sum = vec![0f32; width];
    for vector in vectors.chunks_exact(width) {
        sum.iter_mut().zip(vector).for_each(|(total, value)| *total += value);
    }
    let norm = sum.iter().map(|value| value * value).sum::<f32>().sqrt();
    sum.iter_mut().for_each(|value| *value /= norm);
    sum
}

/// Runs a batch of what has come whenever the last one has ended.
fn run_batches(mut session: Session, texts: mpsc::Receiver<Text>) {
    let mut waiting = Vec::new();
    while let Ok(first) = texts.recv() {
        waiting.push(first);
        while !waiting.is_empty() {
            waiting.extend(texts.try_iter());
            let batch = next_batch(&mut waiting);
            let vectors = run(&mut session, &batch).expect("the model runs");
            for (text, vector) in batch.into_iter().zip(vectors) {
                // Its caller may have left.
                let _ = text.reply.send(vector);
            }
        }
    }
}

async fn embeddings(
    State(embedder): State<Embedder>,
    Json(Request { model, input }): Json<Request>,
) -> Result<Json<Reply>, StatusCode> {
    let embedding = embedder.embed(input).await?;
    let data = [Embedding { object: "embedding", index: 0, embedding }];
    Ok(Json(Reply { object: "list", model, data }))
}

#[tokio::main]
async fn main() {
    let folder = env::var("MODEL").expect("MODEL names the folder");
    let folder = Path::new(&folder);
    let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).expect("the tokenizer opens");
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).expect("the tokenizer cuts nothing");
    let session = Session::builder()
        .and_then(|builder| builder.with_intra_threads(thread::available_parallelism().map_or(1, usize::from)))
        .and_then(|builder| builder.commit_from_file(folder.join("onnx/model.onnx")))
        .expect("the model opens");
    let (queue, texts) = mpsc::channel();
    thread::spawn(move || run_batches(session, texts));
    let router = Router::new()
        .route("/v1/embeddings", post(embeddings))
        .with_state(Embedder { tokenizer: Arc::new(tokenizer), queue });
    let port = env::var("PORT").expect("PORT is a number");
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("the port is free");
    axum::serve(listener, router).await.expect("the server runs");
}
