//! Computing a saved reply of `disco-serve` again.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail, ensure};
use disco::{DRef, DeviceKind, Json, LaneSession, Value, WorkerId, block_on};
use disco_candle::weights::Weights;
use disco_models::serving::{Digests, Plan, Reply, Row, Sampled, Serve, Start, Tokens};
use disco_models::worker::Load;
use disco_models::{BLOCK, Config, fingerprint};
use serde::Deserialize;

/// Tokens of a prompt in one step.
const CHUNK: usize = 512;

/// The part of a reply to a chat or a completion that is read.
#[derive(Deserialize)]
struct Saved {
    system_fingerprint: Option<String>,
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    logits_digest: Option<Digests>,
}

/// Computes the texts of a saved reply again in the session, whose workers are connected, and prints for each token whether it agrees.
///
/// # Errors
/// The file is no reply with `logits_digest`; a token or the digest of its logits differs, the first of which is named.
pub(crate) fn verify(
    file: &Path,
    (weights, config): (&Weights, &Config),
    load: Load,
    session: LaneSession,
    stop: &AtomicBool,
) -> Result<()> {
    let text = fs::read(file).with_context(|| format!("{}: it can't be read", file.display()))?;
    let saved: Saved = serde_json::from_slice(&text)
        .with_context(|| format!("{}: it is no reply of /v1/chat/completions or /v1/completions", file.display()))?;
    let own = fingerprint(weights, &load, DeviceKind::Cpu).context("the model's files can't be read")?;
    if let Some(theirs) = saved.system_fingerprint.filter(|theirs| *theirs != own) {
        eprintln!(
            "generate: the reply has the system_fingerprint {theirs}, and this model and these kernels have {own}"
        );
    }
    let texts = saved.choices.into_iter().map(|choice| choice.logits_digest).collect::<Option<Vec<_>>>();
    let texts = texts.context("the reply has no digests: its request needs `\"logits_digest\": true`")?;
    let outcome = block_on(async {
        let tokens = texts.iter().map(|text| text.prompt_token_ids.len() + text.token_ids.len()).max().unwrap_or(0);
        ensure!(tokens <= config.context, "the reply has {tokens} tokens, and the model's context {}", config.context);
        let serve = Serve::new(load, tokens.div_ceil(BLOCK), 1);
        let state = session.call("disco.models.serve", (Json(serve), None::<&DRef>)).await?;
        let mut verifier = Verifier { session: &session, state, config, step: 0 };
        for (number, text) in texts.iter().enumerate() {
            verifier.text(number, text, stop).await?;
        }
        Ok(())
    });
    let ended = block_on(session.shutdown());
    outcome.and(Ok(ended?))
}

struct Verifier<'a> {
    session: &'a LaneSession,
    state: DRef,
    config: &'a Config,
    step: u64,
}

impl Verifier<'_> {
    async fn text(&mut self, number: usize, text: &Digests, stop: &AtomicBool) -> Result<()> {
        ensure!(text.token_ids.len() == text.digests.len(), "text {number} has not one digest for each token");
        ensure!(!text.prompt_token_ids.is_empty(), "text {number} has no prompt");
        let mut params = text.params.clone();
        (params.logprobs, params.prompt_logprobs, params.digests_logits) = (None, None, true);
        let mut all = text.prompt_token_ids.clone();
        let prompt = all.len();
        let mut done = 0;
        for (place, token) in text.token_ids.iter().enumerate() {
            ensure!(!stop.load(Ordering::Relaxed), "stopped at token {place} of text {number}");
            // As the server, which computes a text anew that outgrows the context in which positions are rotated alike.
            let restarts = self.config.restarts() && place > 0 && self.config.first_context() == Some(all.len() - 1);
            let known = if restarts { all.len() } else { prompt };
            done = if restarts { 0 } else { done };
            let mut sampled = None;
            while done < all.len() {
                let end = all.len().min(done + CHUNK);
                let mut row = Row::new(0, done as u32, Tokens::Given(all[done..end].to_vec()));
                row.samples = end == all.len();
                if done == 0 {
                    let mut start = Start::new(params.clone(), prompt);
                    start.known = known as u32;
                    row.starts = Some(Box::new(start));
                    row.blocks = (0..(prompt + text.token_ids.len()).div_ceil(BLOCK) as u32).collect();
                }
                sampled = self.row(row).await?;
                done = end;
            }
            let Some(Sampled::Token(chosen)) = sampled else {
                bail!("text {number}, token {place}: a logit is NaN or infinite");
            };
            if let Some(difference) = text.difference(place, &chosen) {
                bail!("text {number}, token {place}: {difference}");
            }
            let what = if text.has_grammar { "agree; a grammar chose the token" } else { "and token agree" };
            println!("text {number}, token {place} ({token}): logits {what}");
            all.push(*token);
        }
        Ok(())
    }

    async fn row(&mut self, row: Row) -> Result<Option<Sampled>> {
        let mut plan = Plan::new(self.step);
        self.step += 1;
        plan.rows.push(row);
        let bytes = plan.to_bytes().map_err(anyhow::Error::msg)?;
        let call = self.session.call("disco.models.step", (&self.state, bytes)).await?;
        let Value::Bytes(bytes) = self.session.value(&call, WorkerId::new(0)).await? else {
            bail!("the reply of the workers is of another type");
        };
        let reply = Reply::from_bytes(&bytes).map_err(anyhow::Error::msg)?;
        Ok(reply.rows.into_iter().next().and_then(|row| row.sampled))
    }
}
