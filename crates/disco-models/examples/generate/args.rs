//! The command line.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use disco::SessionKind;
use disco_models::{ExpertSplit, Precision};

/// Generate text with a language model that is split over the workers of a session
#[derive(Clone, Debug, Parser)]
#[command(name = "generate")]
pub(crate) struct Args {
    /// Prompts; several are computed together, as a batch
    #[arg(value_name = "PROMPT")]
    pub(crate) prompts: Vec<String>,
    /// File with one prompt a line
    #[arg(long, value_name = "FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Number of workers that share the model
    #[arg(long, env = "DISCO_WORKERS", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) workers: u16,
    /// Kind of session: threads, processes, nodes [default: processes for `mpi`, threads for others]
    #[arg(long, env = "DISCO_SESSION")]
    pub(crate) session: Option<SessionKind>,
    /// Number of nodes of a session of nodes, all on this machine; must divide the number of workers
    #[arg(long, default_value_t = 2)]
    pub(crate) nodes: usize,
    /// Backend of the data plane
    #[arg(long, env = "DISCO_BACKEND", default_value = "local")]
    pub(crate) backend: String,
    /// Device of each worker, separated by commas [default: worker i of a machine takes device i]
    #[arg(long, env = "DISCO_DEVICES", value_delimiter = ',')]
    pub(crate) devices: Vec<i32>,
    /// Threads of each worker [default: the cores of the machine, shared equally]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// GGUF file, safetensors file, folder with `config.json`, `tokenizer.json` and safetensors files, or name on Hugging
    /// Face's hub: `OWNER/REPOSITORY`, with `:Q4_K_M` or such for one of several GGUF files
    /// [default: SmolLM2-135M-Instruct, fetched once]
    #[arg(long, value_name = "FILE|FOLDER|NAME")]
    pub(crate) model: Option<String>,
    /// Folder of an adapter (LoRA) of the model, which is merged into its weights; `--model` may name such a folder itself, if
    /// its `adapter_config.json` says where the base is
    #[arg(long, value_name = "FOLDER")]
    pub(crate) adapter: Option<PathBuf>,
    /// Type of the weights in memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: Dtype,
    /// The most tokens to generate for each prompt
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_tokens: u32,
    /// Temperature; 0 chooses the most probable token
    #[arg(long, default_value_t = 0.0, value_parser = |text: &str| number(text, f64::MAX))]
    pub(crate) temperature: f64,
    /// Choose from the most probable tokens, whose probabilities sum up to this
    #[arg(long, default_value_t = 1.0, value_parser = |text: &str| number(text, 1.0))]
    pub(crate) top_p: f64,
    /// Seed of the choices
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// System message of the chat [default: that of the model's template]
    #[arg(long)]
    pub(crate) system: Option<String>,
    /// File with a list of JSON schemas of functions, which the model's template tells the model
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    pub(crate) tools: Option<PathBuf>,
    /// Variable of the model's template, such as `enable_thinking=false`; a value that is no JSON is a text; can be given
    /// more than once
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "raw", value_parser = variable)]
    pub(crate) variable: Vec<(String, serde_json::Value)>,
    /// Continue the prompts as they are, without the chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// A key of `config.json` that is not understood and does not change the results; can be given more than once
    #[arg(long, value_name = "KEY")]
    pub(crate) ignore_key: Vec<String>,
    /// How the experts of a mixture are split over the workers
    #[arg(long, value_enum, default_value_t, value_name = "SPLIT")]
    pub(crate) experts: Experts,
    /// How often the text continues after the loss of a worker, with a new worker in its place or, where that can't be, in a
    /// new session [default: 1; 0 for `mpi`, which can do neither]
    #[arg(long, value_name = "TIMES")]
    pub(crate) restarts: Option<usize>,
    /// Measure the time that workers wait for each other apart from collectives; this costs a barrier for each collective
    #[arg(long)]
    pub(crate) measure_waits: bool,
    /// Enqueue the work of each token on a GPU one by one, instead of replaying it as a graph
    #[arg(long)]
    pub(crate) no_graph: bool,
    /// Print the numbers of the generated tokens instead of the texts, a line `tokens [..]` for each sequence
    #[arg(long)]
    pub(crate) print_tokens: bool,
    /// Print the largest logits after each prompt on standard error, a line `logits [[token, logit], ..]` each
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub(crate) print_logits: usize,
    /// Compute the texts of a saved reply of `disco-serve` again, whose request had `"logits_digest": true`, and say for each token whether
    /// it and the digest of its logits agree; fails at the first difference. Needs the `--dtype` of the server
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompts", "prompt_file", "system", "tools", "variable", "raw", "print_tokens"])]
    pub(crate) verify: Option<PathBuf>,
    /// Print which part of each tensor each worker reads, and exit
    #[arg(long)]
    pub(crate) show_plan: bool,
}

/// How the experts of a mixture are split over the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Experts {
    /// Each worker has some hidden units of every expert
    #[default]
    Within,
    /// Each worker has some experts whole
    Over,
}

impl Experts {
    /// The split for the model.
    pub(crate) fn split(self) -> ExpertSplit {
        match self {
            Self::Within => ExpertSplit::Within,
            Self::Over => ExpertSplit::Over,
        }
    }
}

/// The type of the weights in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// 32-bit floats
    #[default]
    F32,
    /// 16-bit floats
    F16,
    /// 16-bit floats with the exponents of 32-bit floats
    Bf16,
    /// Quantised blocks, or on hosts 16-bit floats, as in the file; the model computes with 32 bits
    File,
}

impl Dtype {
    /// The type for the model.
    pub(crate) fn precision(self) -> Precision {
        match self {
            Self::F32 => Precision::F32,
            Self::F16 => Precision::F16,
            Self::Bf16 => Precision::Bf16,
            Self::File => Precision::File,
        }
    }
}

/// A variable and its value.
fn variable(text: &str) -> Result<(String, serde_json::Value), String> {
    let (name, value) = text.split_once('=').ok_or("it must be NAME=VALUE")?;
    Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| value.into())))
}

/// A number from 0 to `most`.
fn number(text: &str, most: f64) -> Result<f64, String> {
    let number = text.parse().map_err(|error| format!("{error}"))?;
    if (0.0..=most).contains(&number) {
        Ok(number)
    } else if most == f64::MAX {
        Err("it must be 0 or more".to_owned())
    } else {
        Err(format!("it must be 0 to {most}"))
    }
}

impl Args {
    /// The kind of session.
    pub(crate) fn kind(&self) -> SessionKind {
        self.session.unwrap_or(SessionKind::of(&self.backend))
    }

    /// How often the text continues after the loss of a worker.
    pub(crate) fn restarts(&self) -> Result<usize> {
        match self.restarts {
            Some(1..) if self.backend == "mpi" => bail!(
                "--restarts can't hold with the backend mpi: new workers can't join the ranks of MPI, and a process has one session \
                 over it; `disco run --restart` starts the whole program again"
            ),
            None if self.backend == "mpi" => Ok(0),
            restarts => Ok(restarts.unwrap_or(1)),
        }
    }

    /// The prompts of the arguments and of the file.
    pub(crate) fn all_prompts(&self) -> Result<Vec<String>> {
        let mut prompts = self.prompts.clone();
        if let Some(file) = &self.prompt_file {
            let text =
                fs::read_to_string(file).with_context(|| format!("{}: the prompts can't be read", file.display()))?;
            prompts.extend(text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
        }
        ensure!(!prompts.is_empty(), "there is no prompt; pass one as an argument, or a file with `--prompt-file`");
        Ok(prompts)
    }
}
