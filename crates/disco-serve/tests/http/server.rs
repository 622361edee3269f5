//! A server with a double of the engine.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use disco_candle::weights::Weights;
use disco_models::SamplingDefaults;
use disco_models::encoding::Encoding;
use disco_models::text::Text;
use disco_serve::engine::{Event, Request, channel, encoders};
use disco_serve::health::{Health, State};
use disco_serve::http::{App, Drain, Encoder, Limits, Model, serve};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::client::{Response, Stream, post};
use super::double::EngineDouble;
use super::model::{END, TEXT, VOCABULARY, with_template};
use crate::recorder;
use serde_json::Value;

/// A server in this process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) drain: Drain,
    pub(crate) health: Arc<Health>,
    pub(crate) task: JoinHandle<()>,
}

/// Limits of tests: no time passes unless a test waits for it.
fn limits() -> Limits {
    Limits { keep_alive: Duration::from_secs(3600), ..Limits::new(1000, 10_000) }
}

impl Server {
    /// A server that is ready.
    pub(crate) async fn start() -> (Self, EngineDouble) {
        Self::start_with(|_| ()).await
    }

    /// A server of a model with this chat template, whose texts are these events.
    pub(crate) async fn with_template(template: &str, events: Vec<Event>) -> Self {
        let template = with_template(template);
        let (server, engine) = Self::start_with(|app| app.model.text = template).await;
        tokio::spawn(engine.answer_all(move |_| events.clone()));
        server
    }

    /// A server that is ready, after `change` of its parts.
    pub(crate) async fn start_with(change: impl FnOnce(&mut App)) -> (Self, EngineDouble) {
        let (requests, inbox) = channel(64);
        let health = Arc::new(Health::new());
        health.set_state(State::Ready);
        let model = Model {
            name: "tiny".into(),
            text: TEXT.clone(),
            ends: vec![END],
            vocabulary: VOCABULARY,
            sampling: SamplingDefaults::default(),
            fingerprint: Arc::new("fp_0".to_owned().into()),
            is_on_the_host: true,
        };
        let metrics = Some(recorder());
        let mut app = App {
            requests,
            model,
            encoder: None,
            limits: limits(),
            token: None,
            hosts: None,
            origins: Vec::new(),
            health: health.clone(),
            metrics,
            spans: None,
        };
        change(&mut app);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let drain = Drain::new();
        let task = tokio::spawn(serve(listener, app, drain.clone()));
        (Self { address, drain, health, task }, EngineDouble::new(inbox))
    }

    /// A server of the model for vectors or scores in a folder of `tests/embeddings`, after `change` of its parts. Its vectors have two numbers,
    /// and its texts at most 64 tokens.
    pub(crate) async fn encoding(name: &str, change: impl FnOnce(&mut App)) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embeddings").join(name);
        let mut encoding = Encoding::of_folder(&folder).unwrap().unwrap();
        encoding.longest = 64;
        let (ways, mut batches) = encoders(64);
        tokio::spawn(async move {
            while let Some(batch) = batches.recv().await {
                // A client may have gone.
                _ = batch.reply.send(Ok(vec![vec![0.5, 0.5]; batch.texts.len()]));
            }
        });
        let of_folder = |app: &mut App| {
            app.model.text = Arc::new(Text::open(&Weights::open(&folder).unwrap()).unwrap());
            app.model.vocabulary = encoding.vocabulary;
            app.encoder = Some(Encoder { encoders: ways, encoding });
            change(app);
        };
        Self::start_with(of_folder).await.0
    }

    /// A server whose engine answers all requests by the same events.
    pub(crate) async fn answering(
        events: impl Fn(&Request) -> Vec<Event> + Send + Sync + 'static,
    ) -> (Self, JoinHandle<Vec<Request>>) {
        let (server, double) = Self::start().await;
        (server, tokio::spawn(double.answer_all(events)))
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Response {
        post(self.address, path, &body.to_string()).await
    }

    /// Begins a request whose reply a test reads later.
    pub(crate) async fn stream(&self, path: &str, body: Value) -> Stream {
        Stream::open(self.address, path, &body.to_string()).await
    }

    /// The events of a stream whose names are also the types of their objects.
    pub(crate) async fn events(&self, path: &str, body: Value) -> Vec<Value> {
        let mut stream = self.stream(path, body).await;
        assert_eq!(stream.head().await.status, 200);
        let mut events = Vec::new();
        while let Some(event) = stream.event().await {
            let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
            let data: Value = serde_json::from_str(data).unwrap();
            assert_eq!(data["type"], name);
            events.push(data);
        }
        events
    }

    /// Ends the server, and returns the requests that its engine has answered.
    pub(crate) async fn requests(self, engine: JoinHandle<Vec<Request>>) -> Vec<Request> {
        self.drain.end();
        self.task.await.unwrap();
        engine.await.unwrap()
    }
}
