//! `disco run --copy`: copies the program's file to the hosts.

use std::env;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail};
use sha2::{Digest as _, Sha256};

use super::host_list::Host;
use super::script::{self, Copied};
use super::ssh::{Phase, Remote, Step};

/// Hosts to which the file is copied at the same time.
const AT_ONCE: usize = 16;
/// Time for one host.
const LIMIT: Duration = Duration::from_secs(600);

/// Copies the file of `program` to each host that does not have it. Returns its name there.
///
/// # Errors
/// The file can't be read; a copy fails. The error names each host.
pub(super) fn to_hosts(program: &str, ssh: &[String], hosts: &[Host]) -> anyhow::Result<Copied> {
    let path = find(program)?;
    let content = fs::read(&path).with_context(|| format!("--copy: {}", path.display()))?;
    let hash = Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("program").to_owned();
    let (copied, content) = (Copied { hash, name }, Arc::<[u8]>::from(content));
    let mut failures = Vec::new();
    for hosts in hosts.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let copies: Vec<_> = hosts.iter().map(|host| scope.spawn(|| copy(ssh, host, &copied, &content))).collect();
            let ended = copies.into_iter().map(|copy| copy.join().unwrap_or_else(|_| Err(anyhow!("a copy panicked"))));
            failures.extend(ended.filter_map(Result::err).map(|error| format!("{error:#}")));
        });
    }
    if failures.is_empty() { Ok(copied) } else { bail!("{}", failures.join("\n")) }
}

fn copy(ssh: &[String], host: &Host, copied: &Copied, content: &Arc<[u8]>) -> anyhow::Result<()> {
    let script = script::copy(copied, content.len());
    let ((ask, asked), content) = (mpsc::channel(), content.clone());
    let send = move |input: &mut ChildStdin| {
        let over = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        asked.recv().map_err(over)?;
        input.write_all(&content)?;
        asked.recv().map_err(over)
    };
    let mut remote = Remote::start(ssh, host, script, send)?;
    let until = Instant::now() + LIMIT;
    loop {
        match remote.next(Some(until))? {
            Step::Reached(Phase::Copying) => _ = ask.send(()),
            Step::Reached(_) | Step::Closed => {}
            Step::Ended(status) if status.success() => return Ok(()),
            Step::Ended(status) => return Err(remote.failure(status, "", &copied.name)),
            Step::Late => return Err(remote.late(LIMIT)),
        }
    }
}

/// The file of a program, as a shell finds it.
fn find(program: &str) -> anyhow::Result<PathBuf> {
    if program.contains('/') {
        return Ok(program.into());
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let mut paths = env::split_paths(&folders).map(|folder| folder.join(program));
    paths.find(|path: &PathBuf| Path::is_file(path)).with_context(|| format!("--copy: no `{program}` in PATH"))
}
