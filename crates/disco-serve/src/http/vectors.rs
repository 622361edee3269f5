//! `/v1/embeddings`, `/rerank` and `/score`.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use disco_models::encoding::{Encoding, Vectors};
use disco_models::text::Text;
use serde_json::{Value, json};

use super::app::Encoder;
use super::respond;
use super::shared::{Active, Shared};
use crate::api::{ApiError, Cut, Embed, Fields, Input, Known, Rerank, Score};

/// The tokens of texts.
type Texts = Vec<Vec<u32>>;

/// The vectors of texts.
pub(super) async fn embeddings(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let tokens = |text: &Text, embed: &Embed, encoding: &Encoding| {
        let tokens = embed.inputs.iter().map(|input| match input {
            Input::Text(one) => fitting(text.encode(one, true)?, embed.cut, encoding, text),
            Input::Tokens(tokens) => fitting(tokens.clone(), embed.cut, encoding, text),
        });
        tokens.collect::<Result<Vec<_>, ApiError>>()
    };
    let (embed, vectors, count) = encoded(&shared, request, false, Embed::parse, tokens).await?;
    let width = vectors.first().map_or(0, Vec::len);
    if let Some(dimensions) = embed.dimensions.filter(|dimensions| *dimensions > width) {
        let why = format!("can be at most {width}, not {dimensions}");
        return Err(ApiError::param("dimensions", why));
    }
    let data = vectors.into_iter().enumerate().map(|(index, mut vector)| {
        if let Some(dimensions) = embed.dimensions {
            vector.truncate(dimensions);
            let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
            vector.iter_mut().for_each(|number| *number /= length);
        }
        let embedding = if embed.is_base64 { base64(&vector).into() } else { Value::from(vector) };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    });
    let data: Vec<_> = data.collect();
    Ok(answer(&shared, json!({"object": "list", "data": data}), count))
}

/// Scores of pairs of texts.
pub(super) async fn score(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let (_, scores, count) = encoded(&shared, request, true, Score::parse, pairs).await?;
    let data = scores.iter().enumerate();
    let data: Vec<_> =
        data.map(|(index, score)| json!({"object": "score", "index": index, "score": sigmoid(score)})).collect();
    Ok(answer(&shared, json!({"object": "list", "data": data}), count))
}

/// Documents in the order of their scores.
pub(super) async fn rerank(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, ApiError> {
    let tokens = |text: &Text, rerank: &Rerank, encoding: &Encoding| pairs(text, &rerank.score, encoding);
    let (rerank, scores, count) = encoded(&shared, request, true, Rerank::parse, tokens).await?;
    let mut order: Vec<_> = scores.iter().map(|score| sigmoid(score)).enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let results = order.into_iter().take(rerank.top).map(|(index, score)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if rerank.returns_documents {
            result["document"] = json!({"text": rerank.score.pairs[index].1});
        }
        result
    });
    let results: Vec<_> = results.collect();
    Ok(answer(&shared, json!({"results": results}), count))
}

fn answer(shared: &Shared, mut object: Value, tokens: usize) -> Response {
    let name: &str = &shared.name;
    object["model"] = name.into();
    object["usage"] = json!({"prompt_tokens": tokens, "total_tokens": tokens});
    respond::json(StatusCode::OK, &object)
}

/// What a request wants, the vectors of its texts, and the number of their tokens.
async fn encoded<T: Send + Sync + 'static>(
    shared: &Arc<Shared>,
    request: Request,
    is_score: bool,
    read: fn(Fields, Known<'_>) -> Result<T, ApiError>,
    tokens: fn(&Text, &T, &Encoding) -> Result<Texts, ApiError>,
) -> Result<(T, Vectors, usize), ApiError> {
    let encode = async {
        let _active: Active = shared.begin()?;
        let makes = || ApiError::Purpose(shared.purpose());
        let Encoder { encoders, encoding } = shared.encoder.clone().ok_or_else(makes)?;
        if encoding.scores_pairs != is_score {
            return Err(makes());
        }
        let checks = shared.clone();
        let (wanted, room) = shared.parse(request, move |fields| read(fields, checks.known())).await?;
        let tokenise = move |text: &Text| tokens(text, &wanted, &encoding).map(|tokens| (wanted, tokens));
        let (wanted, texts) = shared.tokenise(room.bytes(), tokenise).await?;
        drop(room);
        let count = texts.iter().map(Vec::len).sum();
        let vectors = encoders.encode(texts);
        let vectors = tokio::time::timeout(shared.limits.request_time, vectors).await;
        let vectors = vectors.map_err(|_| ApiError::Timeout(shared.limits.request_time))???;
        shared.meters.prompted(count);
        Ok((wanted, vectors, count))
    };
    encode.await.inspect_err(|error: &ApiError| shared.meters.rejected(error.code()))
}

/// Tokens that the model takes.
fn fitting(tokens: Vec<u32>, cut: Cut, encoding: &Encoding, text: &Text) -> Result<Vec<u32>, ApiError> {
    let limit = encoding.longest.min(cut.most);
    match tokens.len() {
        0 => Err(ApiError::param("input", "has a text without tokens")),
        count if count <= limit => Ok(tokens),
        _ if !cut.cuts => Err(ApiError::PromptTooLong { bound: "the model takes", limit }),
        count => {
            // Without the last ones of those that the tokenizer does not put around the text.
            let inner = text.inner(&tokens);
            let end = inner.end.saturating_sub(count - limit).max(inner.start);
            Ok([&tokens[..end], &tokens[inner.end..]].concat())
        }
    }
}

fn pairs(text: &Text, score: &Score, encoding: &Encoding) -> Result<Texts, ApiError> {
    let tokens = score.pairs.iter().map(|(first, second)| {
        let tokens = text.encode_pair(first, second)?;
        let limit = encoding.longest.min(score.cut.most);
        match tokens.len() {
            count if count <= limit => Ok(tokens),
            _ if !score.cut.cuts => Err(ApiError::PromptTooLong { bound: "the model takes", limit }),
            // The end of the second text, before the token that ends both.
            count => Ok([&tokens[..limit.saturating_sub(1)], &tokens[count - 1..]].concat()),
        }
    });
    tokens.collect()
}

fn sigmoid(score: &[f32]) -> f32 {
    let score = score.first().copied().unwrap_or(f32::NAN);
    (1.0 + (-score).exp()).recip()
}

/// Little-endian 32-bit floats in base64.
fn base64(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
}
