//! `disco run --hosts`: the session's program starts its nodes on other machines by `disco start-node`.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};
use clap::Args;
use disco_core::env::Variable;
use serde::{Deserialize, Serialize};

use super::copy;
use super::host_list::{self, Host, Machines};
use super::script::{Copied, Program};
use crate::log;
use crate::values::Words;

/// The variable with the hosts of the nodes, separated by commas.
pub(super) const HOSTS: &str = "DISCO_HOSTS";
/// The variable with [`Start`] as JSON.
pub(super) const OPTIONS: &str = "DISCO_HOST_OPTIONS";
/// The variable with this command, which starts a node.
pub(super) const LAUNCHER: &str = "DISCO_NODE_LAUNCHER";

#[derive(Args)]
pub(super) struct Options {
    /// Machines on which ssh starts the program, separated by commas: HOST, USER@HOST, or HOST:WORKERS. All have the same
    /// number of workers [default: 1]. `localhost` is this machine; without it, this machine has the controller and no
    /// worker
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', group = "machines", conflicts_with = "nodes")]
    hosts: Vec<Host>,
    /// File with such a machine in each line, as HOST, HOST:WORKERS or HOST slots=WORKERS
    #[arg(long, value_name = "FILE", group = "machines", conflicts_with = "nodes")]
    hostfile: Option<PathBuf>,
    /// Command and options of ssh, which asks for no password, in words as a shell splits them [default: DISCO_SSH, else ssh]
    #[arg(long, value_name = "COMMAND", requires = "machines")]
    ssh: Option<Words>,
    /// Copy the program's file to the hosts first, unless they have it already; they keep it until it is unused for a week
    #[arg(long, requires = "machines")]
    copy: bool,
    /// Folder of the program on the hosts [default: this folder]
    #[arg(long, value_name = "FOLDER", requires = "machines")]
    host_dir: Option<String>,
    /// Variable for the program on all machines, this one too, with this value or that of this environment; may be repeated.
    /// Variables whose names begin with DISCO_ need no option
    #[arg(long, value_name = "NAME[=VALUE]", requires = "machines")]
    env: Vec<String>,
}

impl Options {
    /// The machines of the session; none without `--hosts` and `--hostfile`.
    ///
    /// # Errors
    /// The hostfile is wrong, or machines have different numbers of workers.
    pub(super) fn machines(&self) -> anyhow::Result<Option<Machines>> {
        let hosts = match &self.hostfile {
            Some(path) => host_list::read(path)?,
            None if self.hosts.is_empty() => return Ok(None),
            None => self.hosts.clone(),
        };
        Machines::new(hosts).map(Some)
    }

    /// The words of the command ssh.
    ///
    /// # Errors
    /// `DISCO_SSH` is not UTF-8 or no command.
    fn ssh(&self) -> anyhow::Result<Words> {
        if let Some(ssh) = &self.ssh {
            return Ok(ssh.clone());
        }
        let variable = Variable::read("DISCO_SSH");
        Ok(variable.text()?.unwrap_or("ssh").parse().map_err(|why: String| variable.refuse(&why))?)
    }

    /// Gives the program of `command` the variables of `--env`, and makes it start its nodes on the other machines, if there
    /// are any. With `--copy`, copies the program there.
    ///
    /// # Errors
    /// A word of the program is not UTF-8, a variable is not set, or a copy fails.
    pub(super) fn prepare(&self, command: &mut Command, others: &[Host], program: &[OsString]) -> anyhow::Result<()> {
        let env = self.env.iter().map(|text| variable(text)).collect::<anyhow::Result<Vec<_>>>()?;
        // Workers of this machine inherit them.
        command.envs(env.iter().map(|(name, value)| (name, value)));
        if others.is_empty() {
            // This command may run in such a session.
            [HOSTS, OPTIONS, LAUNCHER].into_iter().for_each(|name| _ = command.env_remove(name));
            return Ok(());
        }
        let word = |word: &OsString| {
            let text =
                word.to_str().with_context(|| format!("--hosts: the argument `{}` is not UTF-8", word.display()));
            text.map(str::to_owned)
        };
        let mut words = program.iter().map(word).collect::<anyhow::Result<Vec<_>>>()?.into_iter();
        let name = words.next().context("no program to run")?;
        let Words(ssh) = self.ssh()?;
        let copied = if self.copy { Some(copy::to_hosts(&name, &ssh, others)?) } else { None };
        let folder = match &self.host_dir {
            Some(folder) => folder.clone(),
            None => {
                let folder = env::current_dir().context("this folder is unknown")?;
                folder
                    .to_str()
                    .context("the path of this folder is not UTF-8; name another one by --host-dir")?
                    .to_owned()
            }
        };
        let start = Start { ssh, folder, name, args: words.collect(), copied, env, is_json: log::is_json() };
        let names: Vec<&str> = others.iter().map(|host| host.name.as_str()).collect();
        command.env(HOSTS, names.join(",")).env(OPTIONS, serde_json::to_string(&start)?);
        command.env(LAUNCHER, env::current_exe().context("the path of this program is unknown")?);
        Ok(())
    }
}

/// How a node is started on its host.
#[derive(Serialize, Deserialize)]
pub(super) struct Start {
    /// The words of the command.
    pub(super) ssh: Vec<String>,
    pub(super) folder: String,
    /// The program, as the user has named it.
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) copied: Option<Copied>,
    /// Names and values of variables.
    pub(super) env: Vec<(String, String)>,
    /// Whether messages are lines of JSON.
    pub(super) is_json: bool,
}

impl Start {
    /// Reads what [`Options::prepare`] has set.
    pub(super) fn from_env() -> anyhow::Result<Self> {
        let options = Variable::read(OPTIONS);
        let options = options.text()?.with_context(|| format!("{OPTIONS} is not set; `disco run --hosts` sets it"))?;
        serde_json::from_str(options).with_context(|| format!("{OPTIONS} is not that of this version"))
    }

    pub(super) fn program(&self) -> Program<'_> {
        self.copied.as_ref().map_or(Program::Named(&self.name), Program::Copied)
    }
}

/// A variable of `--env`: its name and its value.
fn variable(text: &str) -> anyhow::Result<(String, String)> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, value.to_owned()),
        None => (text, env::var(text).with_context(|| format!("--env {text}"))?),
    };
    let is_name = |name: &str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    let starts_well = name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    ensure!(starts_well && is_name(name), "--env {text}: `{name}` is no name of a variable");
    Ok((name.to_owned(), value))
}
