//! `/v1/chat/completions`, `/v1/completions`, `/v1/messages` and `/v1/responses`.

use std::sync::Arc;
use std::time::Instant;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use disco_models::serving::{Digests, Params};

use super::body::Room;
use super::generation::{Choice, Generation};
use super::parts::Parts;
use super::prompts::{most_tokens, tokenised};
use super::request_id::RequestId;
use super::respond::json;
use super::shared::{Active, Shared, now};
use super::stream;
use super::traced::{Called, Traced};
use crate::api::{
    ApiError, Ending, Finish, Format, Kind, Known, Message, MessageWriter, Object, Order, Prompt, Reply,
    ResponseWriter, Said, Wanted, Writer,
};
use crate::engine;
use crate::text::ChoiceText;
use crate::trace::Recorder;

/// The names of operations in spans.
const CHAT: &str = "chat";
const COMPLETION: &str = "text_completion";

/// Answers a chat.
pub(super) async fn chat((State(shared), Extension(id), request): Called) -> Response {
    openai(Kind::Chat, shared, id, request).await
}

/// Continues a text.
pub(super) async fn completion((State(shared), Extension(id), request): Called) -> Response {
    openai(Kind::Completion, shared, id, request).await
}

/// Answers with a message of Anthropic's.
pub(super) async fn message((State(shared), Extension(id), request): Called) -> Response {
    let name = format!("msg_{:016x}", shared.random());
    let of_writer = name.clone();
    let read = |object, known: Known<'_>| Message::parse(object, false, known);
    let write = |Message { order, shows_thinking }: Message, shared: &Shared| {
        (order, Box::new(MessageWriter::new(of_writer, shared.name.clone(), shows_thinking)) as Box<dyn Writer>)
    };
    counted(shared, CHAT, name, id, request, read, write).await
}

/// Answers with a response.
pub(super) async fn response((State(shared), Extension(id), request): Called) -> Response {
    let name = format!("resp_{:016x}", shared.random());
    let of_writer = name.clone();
    let write = |Wanted { order, repeated }: Wanted, shared: &Shared| {
        (order, Box::new(ResponseWriter::new(of_writer, now(), shared.name.clone(), repeated)) as Box<dyn Writer>)
    };
    counted(shared, CHAT, name, id, request, Wanted::parse, write).await
}

/// Answers in OpenAI's older forms.
async fn openai(kind: Kind, shared: Arc<Shared>, id: RequestId, request: Request) -> Response {
    let operation = if kind == Kind::Chat { CHAT } else { COMPLETION };
    let name = format!("{}-{:016x}", if kind == Kind::Chat { "chatcmpl" } else { "cmpl" }, shared.random());
    let of_writer = name.clone();
    let read = move |object, known: Known<'_>| Order::parse(kind, object, known);
    let write = move |order: Order, shared: &Shared| {
        let format = Format {
            kind,
            id: of_writer,
            created: now(),
            model: shared.name.clone(),
            fingerprint: shared.fingerprint.get().cloned(),
            text: shared.text.clone(),
            has_logprobs: order.params.logprobs.is_some(),
            tells_usage: order.streams && order.tells_usage,
        };
        (order, Box::new(format) as Box<dyn Writer>)
    };
    counted(shared, operation, name, id, request, read, write).await
}

/// Answers a request, with its spans and counters.
async fn counted<T: Send + 'static>(
    shared: Arc<Shared>,
    operation: &'static str,
    name: String,
    id: RequestId,
    request: Request,
    read: impl FnOnce(Object, Known<'_>) -> Result<T, ApiError> + Send + 'static,
    write: impl FnOnce(T, &Shared) -> (Order, Box<dyn Writer>),
) -> Response {
    let traced = Traced::begin(&shared, operation, &request, &id);
    traced.recorder.note(|| [("gen_ai.response.id", Some(name.as_str().into()))]);
    let result = generate(&shared, id, request, read, write, &traced.recorder).await;
    traced.answer(result.inspect_err(|error| shared.meters.rejected(error.code())))
}

/// Answers a request that `read` understands, in the form of the writer that `write` makes of it.
async fn generate<T: Send + 'static>(
    shared: &Arc<Shared>,
    id: RequestId,
    request: Request,
    read: impl FnOnce(Object, Known<'_>) -> Result<T, ApiError> + Send + 'static,
    write: impl FnOnce(T, &Shared) -> (Order, Box<dyn Writer>),
    recorder: &Recorder,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let active = shared.begin()?;
    if shared.encoder.is_some() {
        return Err(ApiError::Purpose(shared.purpose()));
    }
    let checks = shared.clone();
    let (wanted, room) = shared.parse(request, move |object| read(object, checks.known())).await?;
    let (order, writer) = write(wanted, shared);
    let streams = order.streams;
    note(recorder, &order);
    let mut generation = submitted(order, shared, room, active, id, arrived).await?;
    generation.record(recorder.clone());
    if streams { Ok(stream::response(generation, writer)) } else { whole(generation, writer).await }
}

/// Records what a request wants.
fn note(recorder: &Recorder, order: &Order) {
    let Order { params, seed, stops, choices, max_tokens, streams, .. } = order;
    let sampler = &params.sampler;
    recorder.note(|| {
        [
            ("gen_ai.request.max_tokens", max_tokens.map(Into::into)),
            ("gen_ai.request.temperature", Some(sampler.temperature.into())),
            ("gen_ai.request.top_p", Some(sampler.top_p.into())),
            ("gen_ai.request.top_k", (sampler.top_k > 0).then(|| i64::from(sampler.top_k).into())),
            ("gen_ai.request.frequency_penalty", Some(params.frequency_penalty.into())),
            ("gen_ai.request.presence_penalty", Some(params.presence_penalty.into())),
            ("gen_ai.request.seed", seed.map(|seed| seed.cast_signed().into())),
            ("gen_ai.request.stop_sequences", (!stops.is_empty()).then(|| stops.clone().into())),
            ("gen_ai.request.choice.count", (*choices != 1).then(|| i64::from(*choices).into())),
            ("gen_ai.request.stream", streams.then(|| true.into())),
        ]
    });
}

/// Reserves seats, tokenises, and hands all texts to the engine.
async fn submitted(
    order: Order,
    shared: &Arc<Shared>,
    room: Room<'_>,
    active: Active,
    id: RequestId,
    arrived: Instant,
) -> Result<Generation, ApiError> {
    let (texts, limit) = (order.texts(), shared.limits.waiting_requests);
    if texts > limit {
        let why = format!("and `n` ask for {texts} texts, and the server has seats for {limit}");
        return Err(ApiError::param("prompt", why));
    }
    let mut seats = shared.admission.reserve(texts, order.prompt_bound(shared.limits.longest()))?;
    let is_chat = matches!(order.prompts[..], [Prompt::Chat(_)]);
    let begun = match &order.prompts[..] {
        [Prompt::Chat(chat)] if chat.continues => {
            chat.messages.last().and_then(|message| message["content"].as_str()).map(str::to_owned)
        }
        _ => None,
    };
    let Order { prompts, choices: count, max_tokens, params, seed, stops, echoes, salt, .. } = order;
    let Order { tools, grammar, separates_reasoning, .. } = order;
    let limits = shared.limits.clone();
    let prompts = shared.tokenise(room.bytes(), move |text| tokenised(prompts, echoes, text, &limits)).await?;
    let bytes = room.bytes();
    drop(room);
    let counts = prompts.iter().map(|prompt| most_tokens(prompt.tokens.len(), max_tokens, &shared.limits));
    let counts = counts.collect::<Result<Vec<_>, _>>()?;
    let prompt_tokens: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    seats.correct(prompt_tokens.saturating_mul(count as usize))?;
    let parts = match prompts.first().filter(|_| is_chat) {
        Some(prompt) => Parts::of_chat(tools, separates_reasoning, &prompt.tokens, begun.as_deref(), &shared.text)?,
        None => Parts::default(),
    };
    let asking = parts.clone();
    let grammar = shared.tokenise(bytes, move |text| asking.grammar(grammar, text)).await?;
    let grammar = match grammar {
        Some(asked) => {
            let parts = parts.clone();
            Some(shared.compile(asked, move |compile| parts.refused_tool(compile)).await?)
        }
        None => None,
    };
    let mut choices = Vec::with_capacity(texts);
    for (prompt, max_tokens) in prompts.into_iter().zip(counts) {
        // Without one of the client, each prompt has its own, so that equal prompts have different texts.
        let seed = seed.unwrap_or_else(|| shared.random());
        for number in 0..count {
            let mut params = params.clone();
            (params.sampler.seed, params.choice) = (seed, number);
            let tokens = prompt.tokens.clone();
            let seat = seats.split(tokens.len());
            let grammar = grammar.clone();
            let request = engine::Request { id: id.0.clone(), prompt: tokens, params, max_tokens, grammar, salt };
            let digests = request
                .params
                .digests_logits
                .then(|| Digests::new(&request.prompt, request.params.clone(), request.grammar.is_some()));
            let has_prompt_logprobs = request.params.prompt_logprobs.is_some();
            let Params { ends, min_tokens, logprobs, .. } = &request.params;
            let text = ChoiceText::new(stops.clone(), *min_tokens as usize, logprobs.is_some());
            let text = text.keeping(parts.marks(&shared.text));
            let ends = ends.clone();
            let running = shared.requests.submit(request)?;
            let mut choice = Choice::new(running, seat, text, ends);
            choice.counts_prompt = number == 0;
            choice.digests = digests;
            choice.part(parts.parting(), parts.calls());
            if let Some(echo) = prompt.echo.clone() {
                choice.echo(echo, has_prompt_logprobs);
            }
            choices.push(choice);
        }
    }
    shared.meters.prompted(prompt_tokens);
    Ok(Generation::new(choices, prompt_tokens, shared.clone(), active, arrived))
}

/// The reply that is no stream.
async fn whole(mut generation: Generation, mut writer: Box<dyn Writer>) -> Result<Response, ApiError> {
    let ending = Ending { finish: Finish::Length, stop: None, digests: None };
    let empty = || Reply { said: Said::default(), ending: ending.clone() };
    let mut replies: Vec<_> = std::iter::repeat_with(empty).take(generation.count()).collect();
    while let Some(delta) = generation.next().await {
        let delta = delta?;
        if let Some(reply) = replies.get_mut(delta.index) {
            reply.said.extend(delta.said);
            reply.ending = delta.ending.unwrap_or_else(|| reply.ending.clone());
        }
    }
    Ok(json(StatusCode::OK, &writer.whole(&replies, generation.usage())))
}
