//! `/v1/embeddings`, `/rerank` and `/score`.

use std::sync::Arc;

use axum::Extension;
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
use super::traced::{Called, Traced};
use crate::api::{ApiError, Cut, Embed, Input, Known, Object, Rerank, Score};
use crate::engine::Failure;
use crate::trace::Recorder;

/// The tokens of texts.
type Texts = Vec<Vec<u32>>;

const TOO_LONG: &str = "the model takes";

/// The vectors of texts.
pub(super) async fn embeddings((State(shared), Extension(id), request): Called) -> Response {
    let traced = Traced::begin(&shared, "embeddings", &request, &id);
    let result = embedded(&shared, request, &traced.recorder).await;
    traced.answer(result)
}

async fn embedded(shared: &Arc<Shared>, request: Request, recorder: &Recorder) -> Result<Response, ApiError> {
    let tokens = |text: &Text, embed: &Embed, encoding: &Encoding| {
        let tokens = embed.inputs.iter().map(|input| match input {
            Input::Text(one) => {
                let limit = encoding.longest.min(embed.cut.most);
                if !embed.cut.cuts && text.exceeds(one, limit)? {
                    return Err(ApiError::PromptTooLong { bound: TOO_LONG, limit });
                }
                fitting(text.encode(one, true)?, embed.cut, encoding, text)
            }
            Input::Tokens(tokens) => fitting(tokens.clone(), embed.cut, encoding, text),
        });
        tokens.collect::<Result<Vec<_>, ApiError>>()
    };
    let (embed, vectors, count) = encoded(shared, request, recorder, false, Embed::parse, tokens).await?;
    recorder.note(|| {
        let format = if embed.is_base64 { "base64" } else { "float" };
        [
            ("gen_ai.embeddings.dimension.count", embed.dimensions.map(Into::into)),
            ("gen_ai.request.encoding_formats", Some(vec![format.to_owned()].into())),
        ]
    });
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
    Ok(answer(shared, json!({"object": "list", "data": data}), count))
}

/// Scores of pairs of texts.
pub(super) async fn score((State(shared), Extension(id), request): Called) -> Response {
    let traced = Traced::begin(&shared, "score", &request, &id);
    let result = scored(&shared, request, &traced.recorder).await;
    traced.answer(result)
}

async fn scored(shared: &Arc<Shared>, request: Request, recorder: &Recorder) -> Result<Response, ApiError> {
    let (wanted, vectors, count) = encoded(shared, request, recorder, true, Score::parse, pairs).await?;
    let data = scores(shared, &wanted, &vectors).enumerate();
    let data: Vec<_> = data.map(|(index, score)| json!({"object": "score", "index": index, "score": score})).collect();
    Ok(answer(shared, json!({"object": "list", "data": data}), count))
}

/// Documents in the order of their scores.
pub(super) async fn rerank((State(shared), Extension(id), request): Called) -> Response {
    let traced = Traced::begin(&shared, "rerank", &request, &id);
    let result = reranked(&shared, request, &traced.recorder).await;
    traced.answer(result)
}

async fn reranked(shared: &Arc<Shared>, request: Request, recorder: &Recorder) -> Result<Response, ApiError> {
    let tokens = |text: &Text, rerank: &Rerank, encoding: &Encoding| pairs(text, &rerank.score, encoding);
    let (rerank, vectors, count) = encoded(shared, request, recorder, true, Rerank::parse, tokens).await?;
    let mut order: Vec<_> = scores(shared, &rerank.score, &vectors).enumerate().collect();
    order.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let results = order.into_iter().take(rerank.top).map(|(index, score)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if rerank.returns_documents {
            result["document"] = json!({"text": rerank.score.pairs[index].1});
        }
        result
    });
    let results: Vec<_> = results.collect();
    Ok(answer(shared, json!({"results": results}), count))
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
    recorder: &Recorder,
    is_score: bool,
    read: fn(Object, Known<'_>) -> Result<T, ApiError>,
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
        let (wanted, room) = shared.parse(request, move |object| read(object, checks.known())).await?;
        // One seat for all texts, until they have vectors.
        let mut seats = shared.admission.reserve(1, 0)?;
        let tokenise = move |text: &Text| {
            let tokens = tokens(text, &wanted, &encoding)?;
            if tokens.iter().flatten().any(|token| *token as usize >= encoding.vocabulary) {
                return Err(ApiError::param("input", "has a token that the model does not know"));
            }
            Ok((wanted, tokens))
        };
        let (wanted, texts) = shared.tokenise(room.bytes(), tokenise).await?;
        drop(room);
        let count = texts.iter().map(Vec::len).sum();
        recorder.note(|| [("gen_ai.usage.input_tokens", Some(usize::into(count)))]);
        seats.correct(count)?;
        let vectors = encoders.encode(texts).await??;
        if vectors.iter().flatten().any(|number| !number.is_finite()) {
            return Err(ApiError::from(Failure::Failed("the model has numbers that are not finite".to_owned())));
        }
        shared.meters.prompted(count);
        Ok((wanted, vectors, count))
    };
    let encode = tokio::time::timeout(shared.limits.request_time, encode).await;
    let encode = encode.unwrap_or(Err(ApiError::Timeout(shared.limits.request_time)));
    encode.inspect_err(|error: &ApiError| shared.meters.rejected(error.code()))
}

/// Tokens that the model takes.
fn fitting(tokens: Vec<u32>, cut: Cut, encoding: &Encoding, text: &Text) -> Result<Vec<u32>, ApiError> {
    let limit = encoding.longest.min(cut.most);
    match tokens.len() {
        0 => Err(ApiError::param("input", "has a text without tokens")),
        count if count <= limit => Ok(tokens),
        _ if !cut.cuts => Err(ApiError::PromptTooLong { bound: TOO_LONG, limit }),
        count => {
            // The text's own tokens lose their end; the tokens that the tokenizer puts around them stay.
            let inner = text.inner(&tokens);
            let end = inner.end.saturating_sub(count - limit);
            if end <= inner.start {
                return Err(ApiError::PromptTooLong { bound: TOO_LONG, limit });
            }
            Ok([&tokens[..end], &tokens[inner.end..]].concat())
        }
    }
}

fn pairs(text: &Text, score: &Score, encoding: &Encoding) -> Result<Texts, ApiError> {
    let tokens = score.pairs.iter().map(|(first, second)| {
        let limit = encoding.longest.min(score.cut.most);
        let too_long = || ApiError::PromptTooLong { bound: TOO_LONG, limit };
        if text.exceeds(first, limit)? || (!score.cut.cuts && text.exceeds(second, limit)?) {
            return Err(too_long());
        }
        let tokens = text.encode_pair(first, second)?;
        match tokens.len() {
            0 => Err(ApiError::param("input", "has a pair without tokens")),
            count if count <= limit => Ok(tokens),
            // Something is left of the second text.
            count if score.cut.cuts && text.encode_pair(first, "")?.len() < limit => {
                // Its end, before the token that ends both.
                Ok([&tokens[..limit - 1], &tokens[count - 1..]].concat())
            }
            _ => Err(too_long()),
        }
    });
    tokens.collect()
}

/// The scores of pairs.
fn scores(shared: &Shared, wanted: &Score, vectors: &Vectors) -> impl Iterator<Item = f32> {
    let of_model = shared.encoder.as_ref().is_some_and(|Encoder { encoding, .. }| encoding.is_raw);
    let is_raw = wanted.is_raw.unwrap_or(of_model);
    let sigmoid = |score: f32| (1.0 + (-score).exp()).recip();
    vectors.iter().flatten().map(move |score| if is_raw { *score } else { sigmoid(*score) })
}

/// Little-endian 32-bit floats in base64.
fn base64(vector: &[f32]) -> String {
    STANDARD.encode(vector.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>())
}
