//! actix-web and batched-fn: batches of at most 32 rows, a window of 5 ms, one thread of the model.
use actix_web::{post, web, App, HttpServer};
use batched_fn::batched_fn;
use ort::{inputs, session::Session, value::TensorRef};
use serde::{Deserialize, Serialize};
use std::{cell::RefCell, env};

#[derive(Debug, Deserialize)]
struct Request {
    input: Vec<f32>,
}

#[derive(Debug, Serialize)]
struct Reply {
    index: usize,
}

struct Model(RefCell<Session>);

impl Model {
    fn open() -> ort::Result<Self> {
        let path = env::var("MODEL").expect("MODEL names the file");
        let session = Session::builder()?.with_intra_threads(1)?.commit_from_file(path)?;
        Ok(Model(RefCell::new(session)))
    }

    fn run(&self, rows: &[Request]) -> ort::Result<Vec<Reply>> {
        let values: Vec<f32> = rows.iter().flat_map(|row| row.input.iter().copied()).collect();
        let shape = [rows.len(), values.len() / rows.len()];
        let mut session = self.0.borrow_mut();
        let outputs = session.run(inputs![TensorRef::from_array_view((shape, values.as_slice()))?])?;
        let (_, output) = outputs[0].try_extract_tensor::<f32>()?;
        Ok(output.chunks(output.len() / rows.len()).map(largest).collect())
    }
}

fn largest(values: &[f32]) -> Reply {
    let index = (0..values.len()).reduce(|best, next| if values[next] > values[best] { next } else { best });
    Reply { index: index.unwrap_or_default() }
}

#[post("/predict")]
async fn predict(request: web::Json<Request>) -> actix_web::Result<web::Json<Reply>> {
    let run = batched_fn! {
        handler = |rows: Vec<Request>, model: &Model| -> Vec<Reply> {
            model.run(&rows).expect("the model runs")
        };
        config = { max_batch_size: 32, max_delay: 5 };
        context = { model: Model::open().expect("the model opens") };
    };
    let reply = run(request.into_inner()).await;
    reply.map(web::Json).map_err(|_| actix_web::error::ErrorServiceUnavailable("no reply"))
}

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let port = env::var("PORT").ok().and_then(|port| port.parse().ok()).expect("PORT is a number");
    HttpServer::new(|| App::new().service(predict)).bind(("127.0.0.1", port))?.run().await
}
