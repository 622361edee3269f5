//! Ranks on two hosts. Each host is a network namespace of this machine with its own host name and shared memory, so
//! hosts reach each other only over TCP. A script takes the place of `ssh` and starts a command in a namespace.

use std::env;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use disco_conformance::waiting;

use crate::BENCH;
use crate::library::{INTEL, Library, MPICH, OPEN_MPI, exclusive, run, text};
use crate::programs::build;

const DISCO: &str = env!("CARGO_BIN_EXE_disco");
/// Addresses of `host1` and `host2`, which exist only in the namespaces of a test.
const ADDRESSES: [&str; 2] = ["10.213.7.1", "10.213.7.2"];
/// A benchmark that runs for seconds, with tensors up to 64 MiB.
const LONG_BENCH: [&str; 6] = ["bench", "all_reduce", "--backend", "mpi", "--workers", "4"];

/// Two hosts connected by a virtual cable.
struct Hosts {
    /// Prefix of the namespace names: a namespace is named prefix + host name.
    prefix: String,
    ssh: PathBuf,
}

impl Hosts {
    /// Creates the hosts. Prints the reason and returns `None` if this user can't create namespaces.
    fn new() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("disco-{}-{}-", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let ssh = env::temp_dir().join(format!("{prefix}ssh"));
        let hosts = Self { prefix, ssh };
        match hosts.build() {
            Ok(()) => Some(hosts),
            Err(why) => {
                eprintln!("skipped: no network namespaces here: {why}");
                None
            }
        }
    }

    fn build(&self) -> Result<(), String> {
        let [a, b] = ["host1", "host2"].map(|host| format!("{}{host}", self.prefix));
        for host in [&a, &b] {
            ip(&["netns", "add", host])?;
        }
        ip(&["link", "add", "cable", "netns", &a, "type", "veth", "peer", "name", "cable", "netns", &b])?;
        for (host, address) in [&a, &b].into_iter().zip(ADDRESSES) {
            ip(&["-n", host, "addr", "add", &format!("{address}/24"), "dev", "cable"])?;
            ip(&["-n", host, "link", "set", "lo", "up"])?;
            ip(&["-n", host, "link", "set", "cable", "up"])?;
        }
        // The kernel reports the link as up with a delay.
        let is_up = |host| ip(&["-n", host, "link", "show", "cable"]).is_ok_and(|link| link.contains("state UP"));
        waiting::poll(Duration::from_secs(5), || (is_up(&a) && is_up(&b)).then_some(()))
            .ok_or("the link between the hosts did not come up within 5s")?;
        let enter = format!("exec ip netns exec {}$name unshare --uts --ipc --mount sh -c", self.prefix);
        let script = format!(
            "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\nname=host${{1##*.}}; shift\n\
             {enter} \"mount -t tmpfs shm /dev/shm; echo $name > /proc/sys/kernel/hostname; $*\"\n"
        );
        fs::write(&self.ssh, script).map_err(|error| error.to_string())?;
        fs::set_permissions(&self.ssh, fs::Permissions::from_mode(0o755)).map_err(|error| error.to_string())?;
        let named = Command::new(&self.ssh).args([ADDRESSES[1], "cat", "/proc/sys/kernel/hostname"]).output();
        match named.map(|output| text(&output)) {
            Ok(name) if name == "host2\n" => Ok(()),
            Ok(other) => Err(other),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The command that starts `disco` as four ranks, two on each host.
    fn launch(&self, library: Library, folder: &Path, options: &[&str], args: &[&str]) -> Command {
        self.launch_ranks([2, 2], library, folder, options, args)
    }

    /// The command that starts `disco` as so many ranks on each host; with Intel MPI as many on each.
    fn launch_ranks(
        &self,
        ranks: [usize; 2],
        library: Library,
        folder: &Path,
        options: &[&str],
        args: &[&str],
    ) -> Command {
        let counted = [0, 1].map(|host| format!("{}:{}", ADDRESSES[host], ranks[host])).join(",");
        let mut command = Command::new(&self.ssh);
        command
            .args([ADDRESSES[0], "timeout", "120"])
            .arg(folder.join(library.launcher[0]))
            .args(&library.launcher[1..])
            .args(["-n", &ranks.iter().sum::<usize>().to_string()]);
        match library.folder {
            name if name == OPEN_MPI.folder => {
                command.args(["--host", &counted, "--prtemca", "plm_ssh_agent"]).arg(&self.ssh);
                command.args(["-x", "DISCO_MPI_LIBRARY"]);
            }
            name if name == INTEL.folder => {
                let [hosts, each] = [ADDRESSES.join(","), ranks[0].to_string()];
                command.args(["-iface", "cable", "-hosts", &hosts, "-ppn", &each, "-bootstrap", "ssh"]);
                command.arg("-bootstrap-exec").arg(&self.ssh);
                // Intel MPI looks for its network providers in the folder of an installation.
                command.env("LD_LIBRARY_PATH", folder.join("lib")).env("FI_PROVIDER_PATH", folder.join("lib"));
            }
            _ => {
                command.args(["-localhost", ADDRESSES[0], "-hosts", &counted, "-launcher", "ssh"]);
                command.arg("-launcher-exec").arg(&self.ssh);
                // UCX takes both hosts for one machine and would use shared memory.
                command.env("UCX_NET_DEVICES", "cable");
            }
        }
        command.args(options).arg(DISCO).args(args);
        command.env("FI_PROVIDER", "tcp");
        // By default, Open MPI refuses to run as root.
        command.env("PRTE_ALLOW_RUN_AS_ROOT", "1").env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("DISCO_MPI_LIBRARY", folder.join(library.file)).stdin(Stdio::null());
        command
    }

    /// Ids of the processes of a host.
    fn processes(&self, host: &str) -> Vec<String> {
        let pids = ip(&["netns", "pids", &format!("{}{host}", self.prefix)]).unwrap_or_default();
        pids.split_whitespace().map(str::to_owned).collect()
    }

    /// Process id of a rank.
    fn rank(&self, host: &str, rank: usize) -> String {
        let variable = format!("PMI_RANK={rank}");
        let is_rank = |pid: &String| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            exe == Path::new(DISCO) && environ.split(|byte| *byte == 0).any(|entry| entry == variable.as_bytes())
        };
        self.processes(host).into_iter().find(is_rank).unwrap()
    }

    /// Asserts that all processes of both hosts end.
    fn assert_processes_end(&self) {
        waiting::wait_until("the end of the processes of both hosts", || self.all_processes().is_empty());
    }

    /// Asserts that all ranks but `rank` end, and then, once `rank` is killed, all processes of both hosts.
    fn assert_others_end(&self, rank: &str) {
        let is_disco =
            |pid: &String| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(DISCO));
        let others = || self.all_processes().into_iter().filter(|pid| pid != rank).any(|pid| is_disco(&pid));
        waiting::wait_until("the end of the other ranks", || !others());
        kill("-KILL", rank);
        self.assert_processes_end();
    }

    fn all_processes(&self) -> Vec<String> {
        ["host1", "host2"].map(|host| self.processes(host)).concat()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in ["host1", "host2"] {
            self.processes(host).iter().for_each(|pid| kill("-KILL", pid));
            // Fails if the namespace was never created.
            _ = ip(&["netns", "del", &format!("{}{host}", self.prefix)]);
        }
        _ = fs::remove_file(&self.ssh);
    }
}

fn ip(args: &[&str]) -> Result<String, String> {
    let output = Command::new("ip").args(args).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        Ok(text(&output))
    } else {
        Err(format!("ip {}: {}", args.join(" "), text(&output).trim()))
    }
}

fn kill(signal: &str, pid: &str) {
    _ = Command::new("kill").args([signal, pid]).status();
}

/// Waits for a line that contains `part`, and returns it, or all lines if there is none. Discards later lines in the
/// background.
fn line(pipe: impl std::io::Read + Send + 'static, part: &'static str) -> Result<String, String> {
    let mut lines = BufReader::new(pipe).lines().map_while(Result::ok);
    let mut others = String::new();
    for line in &mut lines {
        if line.contains(part) {
            thread::spawn(move || lines.for_each(drop));
            return Ok(line);
        }
        others += &format!("{line}\n");
    }
    Err(others)
}

/// Starts a benchmark and waits for its first row.
fn begin(command: &mut Command) -> Child {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    line(child.stdout.take().unwrap(), " f32 ").unwrap();
    child
}

#[test]
fn ranks_on_two_hosts_form_one_session() {
    for library in [MPICH, OPEN_MPI, INTEL] {
        let Some(folder) = library.folder() else { continue };
        let Some(hosts) = Hosts::new() else { return };
        let ran = run(&mut hosts.launch(library, &folder, &[], &[&BENCH[..], &["--workers", "4"]].concat()));
        let said = text(&ran);
        assert!(ran.status.success() && said.contains("wrong elements: 0"), "{}: {said}", library.folder);
        hosts.assert_processes_end();
    }
}

/// Rank 0 has no worker, so it is alone on its host, or the hosts have one and two workers.
#[test]
fn ranks_on_two_hosts_form_one_session_apart_from_rank_0() {
    for (library, ranks, workers) in [(MPICH, [1, 2], "2"), (OPEN_MPI, [2, 2], "3")] {
        let Some(folder) = library.folder() else { continue };
        let Some(hosts) = Hosts::new() else { return };
        let args = [&BENCH[..], &["--apart", "--workers", workers]].concat();
        let ran = run(&mut hosts.launch_ranks(ranks, library, &folder, &[], &args));
        let said = text(&ran);
        assert!(ran.status.success() && said.contains("wrong elements: 0"), "{}: {said}", library.folder);
        hosts.assert_processes_end();
    }
}

#[test]
fn ranks_on_two_hosts_pass_the_conformance_suite() {
    let Some(folder) = MPICH.folder() else { return };
    let check = ["check", "--backend", "mpi", "--workers"];
    for (ranks, part) in [([1, 1], &["2"][..]), ([2, 2], &["4", "--filter", "mixed"])] {
        let Some(hosts) = Hosts::new() else { return };
        let checked = run(&mut hosts.launch_ranks(ranks, MPICH, &folder, &[], &[&check[..], part].concat()));
        assert!(checked.status.success() && text(&checked).contains(" 0 failed"), "{part:?}: {}", text(&checked));
        hosts.assert_processes_end();
    }
}

/// A session of nodes starts the ranks of MPI itself: each rank has a process manager over the session's store. The other
/// host has joined if its command succeeds.
#[test]
fn nodes_on_two_hosts_are_ranks_of_mpi_without_a_launcher() {
    let digits = build("digits").join("digits").display().to_string();
    for library in [MPICH, INTEL] {
        let Some(folder) = library.folder() else { continue };
        let Some(hosts) = Hosts::new() else { return };
        let _exclusive = exclusive();
        let on = |host: usize, args: &[&str]| {
            let mut command = Command::new(&hosts.ssh);
            command.args([ADDRESSES[host], "timeout", "100", DISCO]).args(args);
            command.args(["--", &digits, "--epochs", "2"]);
            command.env("DISCO_TOKEN", "8d15c6f5e0a94c3f8d15c6f5e0a94c3f").stdin(Stdio::null());
            command.env("DISCO_MPI_LIBRARY", folder.join(library.file));
            // Of the libraries, as under their launchers.
            command.env("FI_PROVIDER", "tcp").env("UCX_NET_DEVICES", "cable");
            command.env("LD_LIBRARY_PATH", folder.join("lib")).env("FI_PROVIDER_PATH", folder.join("lib"));
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let run = ["run", "--nodes", "2", "--workers", "4", "--backend", "mpi", "--listen", "0.0.0.0:4567"];
        let first = on(0, &run);
        let second = on(1, &["worker", "--connect", &format!("{}:4567", ADDRESSES[0])]);
        let first = first.wait_with_output().unwrap();
        let second = second.wait_with_output().unwrap();
        let said = format!("{}{}", text(&first), text(&second));
        assert!(
            first.status.success() && second.status.success() && said.contains("test accuracy 0.9"),
            "{}: {said}",
            library.folder
        );
        hosts.assert_processes_end();
    }
}

/// Sends `signal` to rank 2, which is on the other host. Returns the controller's error and the time until it was
/// printed.
fn error_after(signal: &str, options: &[&str]) -> Option<(String, Duration)> {
    let folder = MPICH.folder()?;
    let hosts = Hosts::new()?;
    let _exclusive = exclusive();
    let mut launched = begin(&mut hosts.launch(MPICH, &folder, options, &LONG_BENCH));
    let start = Instant::now();
    let rank = hosts.rank("host2", 2);
    kill(signal, &rank);
    let error = line(launched.stderr.take().unwrap(), " lost: ");
    let after = start.elapsed();
    // Beside other programs, the launcher at times leaves the stopped rank, and waits for it.
    hosts.assert_others_end(&rank);
    launched.wait().unwrap();
    Some((error.unwrap_or_else(|others| others), after))
}

#[test]
fn the_error_names_a_rank_killed_on_another_host() {
    let wanted = "disco: rank 2 on host2 with worker 2 lost: its connection was closed";
    let mut said = Vec::new();
    // The option keeps the launcher from killing the controller. At times the launcher itself fails first, when it
    // writes to the dead rank: then the run is repeated.
    while said.len() < 10 {
        let Some((error, after)) = error_after("-KILL", &["-disable-auto-cleanup"]) else { return };
        if error == wanted {
            assert!(after < Duration::from_secs(20), "after {after:?}");
            return;
        }
        said.push(error);
    }
    panic!("{said:?}");
}

#[test]
fn the_error_names_a_rank_stopped_on_another_host() {
    let Some((error, after)) = error_after("-STOP", &[]) else { return };
    assert_eq!(error, "disco: rank 2 on host2 with worker 2 lost: no message came from it for 5s");
    assert!(after < Duration::from_secs(20), "after {after:?}");
}

#[test]
fn all_ranks_end_when_rank_0_is_killed() {
    let Some(folder) = MPICH.folder() else { return };
    let Some(hosts) = Hosts::new() else { return };
    let _exclusive = exclusive();
    let mut launched = begin(&mut hosts.launch(MPICH, &folder, &[], &LONG_BENCH));
    kill("-KILL", &hosts.rank("host1", 0));
    hosts.assert_processes_end();
    assert!(!launched.wait().unwrap().success());
}

#[test]
fn the_error_names_the_ranks_that_can_not_reach_the_address_of_rank_0() {
    let Some(folder) = MPICH.folder() else { return };
    let Some(hosts) = Hosts::new() else { return };
    let mut command = hosts.launch(MPICH, &folder, &[], &LONG_BENCH);
    // Not exclusive: these ranks sleep most of the time.
    let ran = command.env("DISCO_LISTEN", "127.0.0.1:0").output().unwrap();
    let said = text(&ran);
    assert!(!ran.status.success(), "{said}");
    assert!(said.contains("start: no end after 30s: rank 2 on host2, rank 3 on host2 did not join"), "{said}");
    assert!(said.contains("rank 3 on host2: joining the controller at 127.0.0.1:"), "{said}");
    hosts.assert_processes_end();
}
