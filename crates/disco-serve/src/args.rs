//! The command line.

use std::env;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::thread;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};
use disco::{Builder, SessionKind, Settings};
use disco_models::Precision;
use disco_serve::http::Origin;

use crate::log;

/// The name of this machine for itself, which needs no look-up.
const LOCALHOST: &str = "localhost";
/// The most seconds of an option.
const YEAR: u64 = 366 * 24 * 60 * 60;

/// Serve a language model that is split over workers, for clients of OpenAI's HTTP interface
///
/// The server outlives its workers: after the loss of one, a new one takes its place, and the requests that run go on.
#[derive(Clone, Debug, Parser)]
#[command(name = "disco-serve", version)]
pub(crate) struct Args {
    /// GGUF file, safetensors file, folder with `config.json`, `tokenizer.json` and safetensors files, or name on Hugging
    /// Face's hub: `OWNER/REPOSITORY`, with `:Q4_K_M` or such for one of several GGUF files
    /// [default: SmolLM2-135M-Instruct, fetched once]
    #[arg(long, value_name = "FILE|FOLDER|NAME")]
    pub(crate) model: Option<String>,
    /// Name of the model for clients [default: the name of its file or folder]
    #[arg(long, value_name = "NAME")]
    pub(crate) served_model_name: Option<String>,
    /// Number of workers that share the model [default: 2]
    #[arg(long, env = "DISCO_WORKERS", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// Kind of session: threads, processes, nodes. Only processes and nodes can be replaced [default: nodes under `disco run --nodes`,
    /// else processes]
    #[arg(long, env = "DISCO_SESSION")]
    session: Option<SessionKind>,
    /// Number of processes that wait to take the places of lost workers, for `--session processes`; programs that start quickly need none [default: DISCO_SPARES, else 0]
    #[arg(long, value_name = "PROCESSES", value_parser = clap::value_parser!(u16))]
    spares: Option<u16>,
    /// Number of nodes to start on this machine, for `--session nodes`; must divide the number of workers. Nodes of other
    /// machines join under `disco run --nodes`
    #[arg(long)]
    nodes: Option<usize>,
    /// Backend of the data plane [default: DISCO_BACKEND, else local]
    #[arg(long)]
    backend: Option<String>,
    /// Device of each worker, separated by commas [default: DISCO_DEVICES, else worker i of a machine takes device i]
    #[arg(long, value_delimiter = ',')]
    devices: Vec<i32>,
    /// Threads of each worker [default: the cores of this machine, shared equally by the workers of a machine]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Type of the weights in memory
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: Dtype,
    /// Folder of an adapter (LoRA) of the model, which is merged into its weights; `--model` may name such a folder itself, if
    /// its `adapter_config.json` says where the base is
    #[arg(long, value_name = "FOLDER")]
    pub(crate) adapter: Option<PathBuf>,
    /// A key of `config.json` that is not understood and does not change the results; can be given more than once
    #[arg(long, value_name = "KEY")]
    pub(crate) ignore_key: Vec<String>,
    /// How tokens are chosen for requests that do not say it
    #[arg(long, value_enum, default_value_t)]
    pub(crate) sampling_defaults: SamplingSource,
    /// Address or name to listen at; `localhost` is 127.0.0.1, or ::1 on a machine without it. All but loopback addresses need
    /// a token
    #[arg(long, default_value = LOCALHOST, value_name = "ADDRESS|NAME")]
    pub(crate) host: String,
    /// Port to listen at; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    pub(crate) port: u16,
    /// File with the token that clients must have [default: the variable `DISCO_SERVE_TOKEN`]
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// The token itself, which other users of this machine can read in the list of processes
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    pub(crate) api_key: Option<String>,
    /// Names by which clients may address a server without a token, beside those of the loopback; separated by commas
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) allowed_hosts: Vec<String>,
    /// Origins of web pages that may use the server, such as `https://chat.example`, separated by commas; `*` for all
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) allowed_origins: Vec<Origin>,
    /// The most connections. For another one, the client that has sent nothing for the longest time loses its own
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
    /// The most texts that wait for their first token; requests for more are refused
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_waiting_requests: u32,
    /// The most tokens of a prompt and its text [default: the context of the model]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_model_len: Option<u32>,
    /// The most texts that are generated at the same time
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) max_num_seqs: u32,
    /// The most tokens of a step
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_num_batched_tokens: u32,
    /// The most tokens that are guessed at once, from what followed the last tokens earlier in a prompt and its text; a step then computes all of them.
    /// The texts are the same; a text that repeats much is ready sooner. 0 guesses none [default: 16; 0 on devices and for models with
    /// linear attention, which can have no other number]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u16).range(..=64))]
    pub(crate) ngram_drafts: Option<u16>,
    /// Memory of each worker for keys, values and the states of linear attention, such as 512M or 4G [default: what all texts can need, at most a quarter of
    /// the memory that the weights of all workers leave free; devices have no default]
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) kv_cache_bytes: Option<u64>,
    /// Seconds that a step can take, before workers that hang in it are replaced
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) step_deadline: u64,
    /// Seconds that a request can take, before it ends with an error
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=YEAR))]
    pub(crate) request_timeout: u64,
    /// Seconds that requests have to end after SIGTERM or Ctrl-C; a second signal ends at once
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(..=YEAR))]
    pub(crate) drain: u64,
    /// Address of a collector of OpenTelemetry, such as `http://localhost:4318`, which gets the spans of requests (OTLP over
    /// HTTP). For programs that are built with the feature `otlp`
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<String>,
    /// Format of the log and the messages on standard error
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    pub(crate) log_format: log::Format,
}

/// Where the defaults of sampling are from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SamplingSource {
    /// As the model's `generation_config.json` recommends
    #[default]
    Model,
    /// As OpenAI: temperature 1, all tokens
    Openai,
}

/// The type of the weights in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    /// Quantised weights as in the file, and others with 32 bits
    #[default]
    File,
    F32,
    F16,
    Bf16,
}

impl Args {
    /// The session: what the options say, else the environment, which `disco run` sets, else processes.
    ///
    /// # Errors
    /// A variable has no such value, or options and variables contradict each other.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::from_env()?;
        let usual = match settings.session {
            SessionKind::Threads => SessionKind::Processes,
            kind => kind,
        };
        settings.session = self.session.unwrap_or(usual);
        settings.workers = self.workers.map_or(settings.workers.max(2), usize::from);
        if let Some(nodes) = self.nodes {
            ensure!(settings.session == SessionKind::Nodes, "--nodes is for --session nodes");
            ensure!(settings.nodes == 1, "--nodes starts nodes on this machine, and DISCO_NODES waits for others");
            settings.nodes = nodes;
        }
        ensure!(
            settings.session != SessionKind::Nodes || settings.nodes > 1,
            "a session of nodes needs two nodes or more: use --nodes, or `disco run --nodes`"
        );
        ensure!(
            settings.groups == 1,
            "a server has one group of workers, and DISCO_GROUPS asks for {}",
            settings.groups
        );
        settings.apart = settings.session != SessionKind::Threads;
        if let Some(spares) = self.spares {
            ensure!(settings.session == SessionKind::Processes, "--spares is for --session processes");
            settings.spares = spares.into();
        }
        settings.backend = self.backend.clone().unwrap_or(settings.backend);
        if !self.devices.is_empty() {
            settings.devices.clone_from(&self.devices);
        }
        Ok(settings)
    }

    /// The builder of that session.
    pub(crate) fn builder(&self, settings: &Settings) -> Builder {
        match self.nodes {
            Some(nodes) => Builder::new(SessionKind::Nodes, settings.workers)
                .apart(settings.apart)
                .node_options(|options| options.count = nodes),
            None => settings.builder(),
        }
    }

    /// The addresses of `--host`, of which the first one that this machine has is used.
    ///
    /// # Errors
    /// The name has no address.
    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        if self.host.eq_ignore_ascii_case(LOCALHOST) {
            let local = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
            return Ok(local.map(|address| SocketAddr::new(address, self.port)).into());
        }
        Ok((self.host.trim_start_matches('[').trim_end_matches(']'), self.port).to_socket_addrs()?.collect())
    }

    /// Threads of each worker.
    pub(crate) fn threads(&self) -> usize {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        // Each node that joins is another machine.
        let machines = env::var("DISCO_NODES").ok().and_then(|nodes| nodes.parse().ok()).unwrap_or(1);
        let workers = usize::from(self.workers.unwrap_or(2)).div_ceil(std::cmp::max(1, machines));
        self.threads.unwrap_or(cores / workers).max(1)
    }

    /// Whether several workers are threads of this process.
    pub(crate) fn shares_threads(&self) -> bool {
        self.session == Some(SessionKind::Threads) && self.workers != Some(1)
    }

    pub(crate) fn precision(&self) -> Precision {
        match self.dtype {
            Dtype::File => Precision::File,
            Dtype::F32 => Precision::F32,
            Dtype::F16 => Precision::F16,
            Dtype::Bf16 => Precision::Bf16,
        }
    }
}

/// A number of bytes with `K`, `M` or `G` for powers of 1,024.
fn bytes(text: &str) -> std::result::Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("a number of bytes is a number, with K, M or G".to_owned()),
    };
    let number: u64 = number.parse().map_err(|error| format!("{error}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "too many bytes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(["17", "2K", "3MiB", "4gb"].map(|text| bytes(text).unwrap()), [17, 2 << 10, 3 << 20, 4 << 30]);
        for wrong in ["", "x", "1T", "-1", "99999999999G"] {
            bytes(wrong).unwrap_err();
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name() {
        let addresses = |options: &[&str]| {
            let args = Args::try_parse_from(["disco-serve", "--port", "80"].iter().chain(options)).unwrap();
            args.addresses().map(|addresses| addresses.iter().map(SocketAddr::to_string).collect::<Vec<_>>())
        };
        let local = ["127.0.0.1:80", "[::1]:80"];
        assert_eq!(addresses(&[]).unwrap(), local);
        assert_eq!(addresses(&["--host", "Localhost"]).unwrap(), local);
        assert_eq!(addresses(&["--host", "0.0.0.0"]).unwrap(), ["0.0.0.0:80"]);
        for address in ["::1", "[::1]"] {
            assert_eq!(addresses(&["--host", address]).unwrap(), ["[::1]:80"]);
        }
        addresses(&["--host", "no name"]).unwrap_err();
    }

    #[test]
    fn the_options_are_consistent() {
        use clap::CommandFactory as _;
        Args::command().debug_assert();
    }
}
