//! Time limits: a process that reaches its limit is printed with its descendants and their threads, and killed. A hang
//! is then a failure that says where.

use std::fs;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

/// Unit of the times in `/proc`, which is the same on all machines.
const TICK: Duration = Duration::from_millis(10);

/// Interval between two checks whether a process has exited.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Limit of one run of gdb, in seconds.
const GDB_TIMEOUT: &str = "60";

/// How a process ended.
pub(crate) struct Exit {
    pub(crate) status: ExitStatus,
    /// Processor time of the process and of the descendants that were waited for.
    pub(crate) cpu: Duration,
}

/// Waits until the process exits.
///
/// # Errors
/// It runs longer than `limit`. It is then killed with its descendants.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Exit> {
    let start = Instant::now();
    let id = Pid::from_child(child);
    // The process keeps its row in `/proc` until `Child::wait` takes its status.
    let exited = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while rustix::process::waitid(WaitId::Pid(id), exited).context("cannot wait for a process")?.is_none() {
        if start.elapsed() >= limit {
            let processes: Vec<_> = std::iter::once(child.id()).chain(descendants(child.id())).collect();
            processes.iter().for_each(|process| print(*process));
            kill(&processes);
            child.wait().context("cannot wait for a killed process")?;
            bail!("killed after {} s without an exit", limit.as_secs());
        }
        thread::sleep(POLL_INTERVAL);
    }
    let cpu = cpu_time(child.id()).unwrap_or_default();
    Ok(Exit { status: child.wait().context("cannot wait for a process")?, cpu })
}

/// Kills processes that still exist.
pub(crate) fn kill(processes: &[u32]) {
    for process in processes.iter().filter_map(|process| Pid::from_raw(process.cast_signed())) {
        // The process may have exited.
        let _ = rustix::process::kill_process(process, Signal::KILL);
    }
}

/// The running descendants of a process, parents before their children.
pub(crate) fn descendants(ancestor: u32) -> Vec<u32> {
    let all: Vec<_> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| parent(entry.ok()?.file_name().to_str()?))
        .collect();
    let mut found = vec![ancestor];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(process, _)| process));
        next += 1;
    }
    found.split_off(1)
}

/// The id of a process in `/proc` and of its parent, unless it is a zombie.
fn parent(name: &str) -> Option<(u32, u32)> {
    let process = name.parse().ok()?;
    let fields = stat(process)?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?;
    (state != "Z").then_some((process, fields.next()?.parse().ok()?))
}

/// Processor time of a process and of the descendants that were waited for.
fn cpu_time(process: u32) -> Option<Duration> {
    // `STATE PARENT …`: after eleven fields, the user and system time of the process and of its descendants.
    let ticks = stat(process)?.split_whitespace().skip(11).take(4).map(str::parse::<u32>).sum::<Result<u32, _>>();
    Some(TICK * ticks.ok()?)
}

/// The fields of `/proc/PROCESS/stat` after the name of the program.
fn stat(process: u32) -> Option<String> {
    // `ID (NAME) STATE PARENT …`, where NAME may have spaces and parentheses.
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(stat.rsplit_once(')')?.1.to_owned())
}

/// Prints the command line of a process, and the stacks of its threads if gdb is installed, otherwise their names and
/// states.
pub(crate) fn print(process: u32) {
    let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
    println!("-- process {process}: {}", read("cmdline").replace('\0', " "));
    let gdb = Command::new("timeout")
        .args([GDB_TIMEOUT, "gdb", "--batch", "--nx", "-ex", "thread apply all backtrace 16", "--pid"])
        .arg(process.to_string())
        .output();
    match gdb {
        Ok(output) if output.status.success() => println!("{}", String::from_utf8_lossy(&output.stdout)),
        _ => print_threads(process),
    }
}

fn print_threads(process: u32) {
    for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| fs::read_to_string(thread.path().join(file)).unwrap_or_default();
        println!("   {} in {}, {}", read("comm").trim(), read("wchan").trim(), read("syscall").trim());
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{descendants, parent, wait};

    #[test]
    fn a_process_that_reaches_its_limit_is_killed_with_its_descendants() {
        let mut child = Command::new("sh").args(["-c", "sleep 1000 & sleep 1000"]).spawn().unwrap();
        while descendants(child.id()).len() < 2 {
            std::thread::yield_now();
        }
        let children = descendants(child.id());
        let error = wait(&mut child, Duration::ZERO).err().unwrap();
        assert_eq!(error.to_string(), "killed after 0 s without an exit");
        while children.iter().any(|process| parent(&process.to_string()).is_some()) {
            std::thread::yield_now();
        }
    }
    #[test]
    fn the_processor_time_of_a_process_includes_its_children() {
        let program = "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done";
        let mut child = Command::new("sh").args(["-c", &format!("sh -c '{program}'; true")]).spawn().unwrap();
        assert!(wait(&mut child, Duration::from_secs(60)).unwrap().cpu > Duration::ZERO);
    }
}
