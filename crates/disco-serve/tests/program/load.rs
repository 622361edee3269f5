//! Random requests to a server. Each answer that is complete must have the texts of an undisturbed server.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value as Json, json};

use super::client::{Client, completion, post, read};
use super::random::Random;

/// Number of different requests for texts.
const REQUESTS: usize = 12;
/// Prompts of 1 to about 60 tokens.
const PROMPTS: [&str; 6] = [
    "a",
    "The river was",
    "Once upon a time there was",
    "In the morning the people of the island stand on the wall and wait for a ship with oil and grain.",
    "The old man and the sea, and the boat that he had made of wood and rope in the long winter before the war.",
    "wall ship oil grain",
];

/// Requests that are refused, and the status.
fn refused(random: &mut Random) -> (String, u16) {
    let body = |more: Json| post("/v1/completions", &completion("a", 3, more));
    match random.below(10) {
        0 => (body(json!({"model": "another"})), 404),
        1 => (body(json!({"temperature": "hot"})), 400),
        2 => (body(json!({"max_tokens": 100_000})), 400),
        3 => (body(json!({"prompt": ""})), 400),
        4 => (body(json!({"prompt": [9999]})), 400),
        5 => (body(json!({"tools": [], "suffix": "b"})), 400),
        6 => (post("/v1/nothing", &json!({})), 404),
        8 => (body(json!({"guided_regex": "("})), 400),
        7 => (body(json!({"prompt": "a ".repeat(2000)})), 400),
        _ => (body(json!({})).replace("{\"", "{{"), 400),
    }
}

/// Fields that constrain a text.
pub(crate) fn grammars() -> [(&'static str, Json); 3] {
    let entry = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
    }, "required": ["name", "age", "tags"], "additionalProperties": false});
    [
        ("guided_json", entry),
        ("guided_regex", json!("[0-9]{2,4}(-[a-f]+)?")),
        ("guided_choice", json!(["north", "nowhere"])),
    ]
}

/// A random request for texts that end by themselves or with their length.
pub(crate) fn random_body(random: &mut Random) -> Json {
    let mut more = json!({ "ignore_eos": random.chance(80) });
    let mut set = |name: &str, value: Json| more[name] = value;
    if random.chance(50) {
        set("temperature", json!(random.pick(&[0.5, 0.8])));
        set("seed", json!(random.below(1000)));
        set("top_p", json!(random.pick(&[1.0, 0.9])));
    }
    match random.below(11) {
        0 => set("logprobs", json!(2)),
        1 => set("repetition_penalty", json!(1.2)),
        2 => set("frequency_penalty", json!(0.7)),
        3 => set("stop", json!(["th", "e "])),
        4 => set("n", json!(2)),
        5 => {
            set("echo", json!(true));
            set("logprobs", json!(1));
        }
        number @ 6..9 => {
            let (name, grammar) = &grammars()[number - 6];
            set(name, grammar.clone());
            set("ignore_eos", json!(false));
        }
        _ => {}
    }
    completion(random.pick(&PROMPTS), 1 + random.below(60), more)
}

/// Requests, their texts, and what has happened so far.
pub(crate) struct Load {
    client: Client,
    asked: Vec<(Json, Vec<String>)>,
    /// Answers of any kind, and connections that were left.
    pub(crate) answers: AtomicUsize,
    /// Answers with complete texts.
    pub(crate) complete: AtomicUsize,
    /// Answers with the error that says how often the workers failed.
    pub(crate) given_up: AtomicUsize,
}

impl Load {
    /// Random requests, whose texts are the same when they are asked for alone and together with others.
    pub(crate) fn new(client: Client, random: &mut Random) -> Self {
        let ask = |body: &Json| {
            let texts = client.post("/v1/completions", body).texts();
            texts.unwrap_or_else(|error| panic!("{error}: {body}"))
        };
        let asked: Vec<_> = (0..REQUESTS).map(|_| random_body(random)).map(|body| (ask(&body), body)).collect();
        thread::scope(|scope| {
            for (alone, body) in &asked {
                scope.spawn(move || assert_eq!(ask(body), *alone, "{body}"));
            }
        });
        let asked = asked.into_iter().map(|(texts, body)| (body, texts)).collect();
        Self { client, asked, answers: 0.into(), complete: 0.into(), given_up: 0.into() }
    }

    /// Sends one random request, and checks its answer.
    pub(crate) fn request(&self, random: &mut Random) {
        match random.below(20) {
            0..=11 => self.complete(random),
            12..=15 => self.leave(random),
            16..=17 => {
                let (request, status) = refused(random);
                let answer = read(self.client.begin(&request));
                assert!([status, 503].contains(&answer.status), "{status} for {request}: {answer:?}");
            }
            18 => {
                let (body, _) = &self.asked[random.below(self.asked.len())];
                let request = post("/v1/completions", body);
                let part = random.below(request.len());
                TcpStream::connect(self.client.address).unwrap().write_all(&request.as_bytes()[..part]).unwrap();
            }
            _ => {
                let path = random.pick(&["/metrics", "/v1/models", "/health"]);
                let answer = self.client.get(path);
                assert!([200, 503].contains(&answer.status), "{path}: {answer:?}");
            }
        }
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// A text, whole or as a stream.
    fn complete(&self, random: &mut Random) {
        let (body, texts) = &self.asked[random.below(self.asked.len())];
        let mut body = body.clone();
        body["stream"] = json!(random.chance(50));
        // While workers are replaced, new requests are asked to come again.
        let mut answers = std::iter::repeat_with(|| self.client.post("/v1/completions", &body));
        match answers.find(|answer| answer.status != 503).unwrap().texts() {
            Ok(found) => {
                assert_eq!(found, *texts, "{body}");
                self.complete.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                assert!(error.contains("the workers failed"), "{body}: {error}");
                self.given_up.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A client that leaves before the answer or in the middle of it.
    fn leave(&self, random: &mut Random) {
        let (body, _) = &self.asked[random.below(self.asked.len())];
        let mut body = body.clone();
        body["stream"] = json!(random.chance(75));
        let mut stream = self.client.begin(&post("/v1/completions", &body));
        if random.chance(75) {
            let mut bytes = vec![0; 1 + random.below(2000)];
            let _ = stream.read(&mut bytes).unwrap();
        }
    }

    /// Asks for a text, and says whether the server is ready to give it.
    pub(crate) fn is_served(&self) -> bool {
        let (body, texts) = &self.asked[0];
        let answer = self.client.post("/v1/completions", body);
        assert!(answer.status == 503 || answer.texts().as_ref() == Ok(texts), "{answer:?}");
        answer.status == 200
    }

    /// Waits until nothing is left of any request: neither in the cache's tables nor in the metrics.
    pub(crate) fn wait_until_nothing_is_left(&self) {
        let names = ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"];
        self.client.wait_until("no request runs and all blocks are free", || {
            let load = &self.client.get("/health").json()["load"];
            names.iter().all(|name| self.client.metric(name) == Some(0.0)) && load["free_blocks"] == load["blocks"]
        });
    }
}
