//! `disco run --hosts` over a real ssh and sshd. Skipped if there are none; `DISCO_REQUIRE=ssh` makes that a failure.

mod sshd;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::MetadataExt as _;
use std::process::{ExitCode, Output, Stdio};
use std::time::Duration;

use disco_conformance::waiting;
use disco_testing::namespaces;
use rustix::process::{Pid, Signal, getppid, kill_process};

use self::sshd::{Hosts, Process, processes};
use super::{disco, err, hello};

crate::trials::tests!("nodes::hosts":
    the_workers_of_all_hosts_are_one_session,
    a_hostfile_names_the_hosts,
    numbers_of_workers_that_contradict_each_other_are_refused,
    a_host_that_ssh_does_not_reach_says_why,
    a_host_without_the_program_or_its_folder_says_so,
    a_program_that_ends_before_it_joins_fails_the_session,
    a_host_that_can_not_connect_back_names_the_addresses,
    variables_and_output_of_the_hosts_are_passed_on,
    a_variable_reaches_the_program_on_all_machines,
    the_words_of_ssh_may_have_quotes,
    the_token_is_in_no_command_line,
    a_copied_program_is_copied_once,
    no_process_is_left_when_disco_run_is_killed,
    no_process_is_left_when_ssh_or_its_starter_is_killed,
    a_killed_node_is_an_error_that_names_its_host,
    a_lost_host_is_replaced_by_a_new_connection,
);

/// `main` of a program that gives its nodes 4 s to connect.
pub(crate) fn hurry() -> ExitCode {
    disco::init();
    let started =
        disco::Settings::from_env().and_then(|it| it.builder().start_deadline(Duration::from_secs(15)).start());
    eprintln!("{}", started.unwrap_err());
    ExitCode::FAILURE
}

fn kill_node_1(ctx: &mut disco::WorkerContext) -> disco::Result<()> {
    if ctx.worker() != disco::WorkerId::new(1) {
        return Ok(());
    }
    kill_process(getppid().unwrap(), Signal::KILL).unwrap();
    waiting::hang()
}

disco::register_function!("hosts.kill_node_1", kill_node_1);

/// `main` of a program that replaces its second worker after its node was killed.
pub(crate) fn replace() -> ExitCode {
    disco::init();
    let session = disco::from_env().unwrap();
    disco::block_on(async {
        session.call("hosts.kill_node_1", ()).await.unwrap();
        println!("{}", session.sync_all().await.unwrap_err());
        println!("replaced {:?}", session.replace_lost().await.unwrap().workers);
        session.sync_all().await.unwrap();
        session.shutdown().await.unwrap();
    });
    ExitCode::SUCCESS
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn the_workers_of_all_hosts_are_one_session() {
    let Some(hosts) = Hosts::new("session") else { return };
    for (names, workers) in [("localhost,alpha", 2), ("alpha,beta", 2), ("alpha", 1), ("beta:2,localhost:2", 4)] {
        let ran = hosts.run(&["--hosts", names]);
        let said: Vec<String> =
            out(&ran).lines().filter_map(|line| line.split_once(" on ")).map(|(worker, _)| worker.to_owned()).collect();
        let expected: Vec<String> = (0..workers).map(|worker| format!("worker {worker} of {workers}")).collect();
        // A node that has waited for another one says so.
        let unexpected = |line: &&str| !line.ends_with(", waiting for other nodes");
        let errors: Vec<String> = err(&ran).lines().filter(unexpected).map(str::to_owned).collect();
        assert_eq!((said, errors), (expected, Vec::new()), "{names}");
        assert!(ran.status.success());
    }
    hosts.wait_for_end();
}

fn a_hostfile_names_the_hosts() {
    let Some(hosts) = Hosts::new("file") else { return };
    let path = hosts.folder.0.join("hosts");
    fs::write(&path, "# two\nlocalhost slots=2\nalpha:2 # the other one\n").unwrap();
    let ran = hosts.run(&["--hostfile", path.to_str().unwrap()]);
    assert!(ran.status.success() && out(&ran).contains("worker 3 of 4"), "{ran:?}");
    fs::write(&path, "localhost\nalpha slots=x\n").unwrap();
    let expected =
        format!("disco: hostfile {}, line 2: `slots=x`: expected slots=WORKERS, at least 1\n", path.display());
    assert_eq!(hosts.failure(&["--hostfile", path.to_str().unwrap()]), expected);
}

fn numbers_of_workers_that_contradict_each_other_are_refused() {
    let refused = |options: &[&str]| err(&disco().arg("run").args(options).arg("--").arg(hello()).output().unwrap());
    for (options, why) in [
        (
            &["--hosts", "a,b:4"][..],
            "host a has 1 worker, and host b has 4 workers: all hosts of a session have the same number of workers",
        ),
        (&["--hosts", "a:2,b:2", "--workers", "3"], "--workers asks for 3 workers, but the hosts have 4 together"),
        (&["--hosts", "a,b", "--workers", "3"], "3 workers on 2 nodes: each node has as many workers, and at least 1"),
        (
            &["--hosts", "a", "--session", "processes"],
            "--session processes runs on one machine, but --hosts names others",
        ),
    ] {
        assert_eq!(refused(options), format!("disco: {why}\n"));
    }
    let text = refused(&["--hosts=-oProxyCommand=x"]);
    assert!(text.contains("`-oProxyCommand=x` is no host"), "{text}");
    let text = refused(&["--hosts", "a", "--nodes", "2"]);
    assert!(text.contains("cannot be used with '--nodes <NODES>'"), "{text}");
}

fn a_host_that_ssh_does_not_reach_says_why() {
    let Some(hosts) = Hosts::new("reach") else { return };
    for (host, why) in [
        (
            "closed",
            "ssh failed: ssh: connect to host 127.0.0.1 port 1: Connection refused; start sshd there, or set its port",
        ),
        ("denied", "; permit a key that needs no password: `ssh-copy-id denied`"),
        (
            "stranger",
            "Host key verification failed; log in once by `ssh stranger`, and compare and accept the host's key",
        ),
        ("no-such-host.invalid", "ssh failed: ssh: Could not resolve hostname no-such-host.invalid: "),
    ] {
        let text = hosts.failure(&["--hosts", &format!("alpha,{host}")]);
        let (own, lost) =
            (format!("disco: node 2: host {host}: "), format!("node 2 ({host}) with worker 1 lost: its process"));
        assert!(text.contains(&own) && text.contains(why) && text.contains(&lost), "{text}");
    }
    let text = hosts.failure(&["--hosts", "alpha", "--ssh", "/no/ssh -v"]);
    let why = "disco: node 1: host alpha: `/no/ssh` can't be started; install an ssh client, or name another one by --ssh: \
               No such file or directory (os error 2)\n";
    assert!(text.contains(why), "{text}");
    hosts.wait_for_end();
}

fn a_host_without_the_program_or_its_folder_says_so() {
    let Some(hosts) = Hosts::new("absent") else { return };
    let text = hosts.failure(&["--hosts", "alpha", "--host-dir", "/no/folder"]);
    let why = "disco: node 1: host alpha: there is no folder `/no/folder`; make it there, or name another one by --host-dir FOLDER\n";
    assert!(text.contains(why), "{text}");
    let mut run = hosts.disco("hello", &["--hosts", "alpha", "--host-dir", "/"]);
    fs::copy(hello(), hosts.folder.0.join("program")).unwrap();
    let text = err(&run.current_dir(&hosts.folder.0).args(["--", "./program"]).output().unwrap());
    let why = "disco: node 1: host alpha: there is no program `./program` in its folder `/`; install it there, or copy it by --copy\n";
    assert!(text.contains(why), "{text}");
}

fn a_program_that_ends_before_it_joins_fails_the_session() {
    let Some(hosts) = Hosts::new("ends") else { return };
    let program = hello().display().to_string();
    let script = format!("if [ $DISCO_NODE_ID ]; then echo leaving >&2; exit 3; fi; exec {program}");
    let ran = hosts.disco("hello", &["--hosts", "alpha"]).args(["--", "/bin/sh", "-c", &script]).output().unwrap();
    let text = err(&ran);
    assert!(!ran.status.success() && text.contains("[host alpha] leaving\n"), "{text}");
    assert!(text.contains("disco: node 1: host alpha: `/bin/sh` ended: exit status: 3\n"), "{text}");
    let lost = "node 1 (alpha) with worker 0 lost: its process ended: exit status: 1 before it connected";
    assert!(text.contains(lost), "{text}");
}

/// In a network namespace without interfaces, nothing can be reached.
fn a_host_that_can_not_connect_back_names_the_addresses() {
    let Some(hosts) = Hosts::new("cut").filter(|_| namespaces::may_make()) else { return };
    let mut run = hosts.disco("hurry", &["--hosts", "cut", "--listen", "127.0.0.1:0"]);
    let text = err(&run.arg("--").arg(hello()).output().unwrap());
    let start = "[host cut] disco: joining the controller at 127.0.0.1:";
    let joining = text.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    assert!(joining.contains(": no end after 10s: ") && joining.contains("Network is unreachable"), "{joining}");
    assert!(text.contains("\nnode 1 (cut) with worker 0 lost: its process ended: exit status: 1"), "{text}");
}

fn variables_and_output_of_the_hosts_are_passed_on() {
    let Some(hosts) = Hosts::new("variables") else { return };
    let script = "if [ $DISCO_NODE_ID ]; then echo \"$GIVEN, $NAMED, $DISCO_RACK, $PWD, $0\"; fi; exec \"$1\"";
    let options = ["--hosts", "alpha", "--host-dir", "/usr", "--env", "GIVEN=it's $HOME", "--env", "NAMED"];
    let mut run = hosts.disco("say", &options);
    run.env("NAMED", "b").env("DISCO_RACK", "c").args(["--", "/bin/sh", "-c", script, "a  word"]).arg(hello());
    let ran = run.output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let mut lines: Vec<String> = out(&ran).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["[host alpha worker 0] worker 0 prints", "[host alpha] it's $HOME, b, c, /usr, a  word"]);
    assert!(err(&ran).contains("[host alpha worker 0] worker 0 warns\n"), "{ran:?}");
    let text =
        err(&hosts.disco("say", &["--hosts", "alpha", "--env", "DISCO_NOT_SET_1"]).args(["--", "x"]).output().unwrap());
    assert_eq!(text, "disco: --env DISCO_NOT_SET_1: environment variable not found\n");
}

fn a_variable_reaches_the_program_on_all_machines() {
    let Some(hosts) = Hosts::new("everywhere") else { return };
    let script = "echo \"$GIVEN, $NAMED\"; exec \"$0\"";
    for (names, expected) in [
        ("localhost:2", &["it's $HOME, b"][..]),
        ("localhost:2,alpha:2", &["[host alpha] it's $HOME, b", "it's $HOME, b"]),
    ] {
        let mut run = hosts.disco("hello", &["--hosts", names, "--env", "GIVEN=it's $HOME", "--env", "NAMED"]);
        let ran = run.env("NAMED", "b").args(["--", "/bin/sh", "-c", script]).arg(hello()).output().unwrap();
        assert!(ran.status.success(), "{names}: {ran:?}");
        let said = out(&ran);
        let mut lines: Vec<&str> = said.lines().filter(|line| line.contains("$HOME")).collect();
        lines.sort();
        assert_eq!(lines, expected, "{names}");
    }
}

fn the_words_of_ssh_may_have_quotes() {
    let Some(hosts) = Hosts::new("words") else { return };
    let folder = hosts.folder.0.join("it's a folder");
    fs::create_dir(&folder).unwrap();
    fs::copy(hosts.folder.0.join("ssh_config"), folder.join("ssh_config")).unwrap();
    let config = folder.join("ssh_config");
    let command = format!("{} -F \"{}\"", hosts.ssh_program(), config.display());
    let mut by_variable = hosts.disco("hello", &["--hosts", "alpha"]);
    by_variable.env("DISCO_SSH", &command);
    for mut run in [hosts.disco("hello", &["--hosts", "alpha", "--ssh", &command]), by_variable] {
        let ran = run.arg("--").arg(hello()).output().unwrap();
        assert!(ran.status.success() && out(&ran).contains("worker 0 of 1"), "{ran:?}");
    }
    let open = "a quote is not closed, or nothing follows the last backslash";
    let text = hosts.failure(&["--hosts", "alpha", "--ssh", "ssh -i 'a b"]);
    let expected = format!("error: invalid value 'ssh -i 'a b' for '--ssh <COMMAND>': {open}\n");
    assert!(text.starts_with(&expected), "{text}");
    let mut run = hosts.disco("hello", &["--hosts", "alpha"]);
    let ran = run.env("DISCO_SSH", "ssh -i 'a b").arg("--").arg(hello()).output().unwrap();
    assert_eq!(err(&ran), format!("disco: DISCO_SSH=ssh -i 'a b: {open}\n"));
}

fn the_token_is_in_no_command_line() {
    let Some(hosts) = Hosts::new("token") else { return };
    let path = hosts.folder.token();
    let token = fs::read_to_string(&path).unwrap();
    let mut run = hosts.disco("stall", &["--hosts", "localhost,alpha", "--token-file", path.to_str().unwrap()]);
    let mut run = run.arg("--").arg(hello()).arg(hosts.word()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "started");
    let all = processes();
    let ours: Vec<_> = all.iter().filter(|process| process.has(&hosts.word())).collect();
    assert!(ours.iter().any(|process| process.command_line.contains("exec /bin/sh")), "ssh runs");
    assert!(all.iter().all(|process| !process.command_line.contains(token.trim())));
    run.kill().unwrap();
    run.wait().unwrap();
    hosts.wait_for_end();
}

fn a_copied_program_is_copied_once() {
    let Some(hosts) = Hosts::new("copy") else { return };
    let program = hosts.folder.0.join("program");
    fs::copy(hello(), &program).unwrap();
    let cache = hosts.folder.0.join("cache");
    // The shell of the host reads no variable of this test.
    let script = fs::read_to_string(hosts.folder.0.join("sshd_config")).unwrap();
    fs::write(hosts.folder.0.join("sshd_config"), format!("{script}SetEnv XDG_CACHE_HOME={}\n", cache.display()))
        .unwrap();
    let run = || {
        let mut run = hosts.disco("hello", &["--hosts", "alpha,beta", "--host-dir", "/", "--copy"]);
        let ran = run.current_dir(&hosts.folder.0).args(["--", "./program"]).output().unwrap();
        assert!(ran.status.success() && out(&ran).contains("worker 1 of 2"), "{ran:?}");
        let folders = fs::read_dir(cache.join("disco/programs")).unwrap();
        let files = folders.map(|folder| fs::read_dir(folder.unwrap().path()).unwrap().next().unwrap().unwrap());
        files.map(|file| (file.file_name(), file.metadata().unwrap().ino())).collect::<Vec<_>>()
    };
    let first = run();
    assert_eq!((first.len(), first[0].0.to_str()), (1, Some("program")));
    assert_eq!(run(), first);
    // A program that can't be stored.
    fs::remove_dir_all(&cache).unwrap();
    fs::write(&cache, "no folder").unwrap();
    let text = hosts.failure(&["--hosts", "alpha,beta", "--copy"]);
    let name = hello().file_name().unwrap().display().to_string();
    for host in ["alpha", "beta"] {
        let why =
            format!("host {host}: `{name}` can't be copied to its cache folder; its shell has printed the reason\n");
        assert!(text.contains(&why), "{text}");
    }
    assert!(text.contains("[host alpha] mkdir: "), "{text}");
}

fn no_process_is_left_when_disco_run_is_killed() {
    let Some(hosts) = Hosts::new("killed") else { return };
    // A shell starts programs in the background with SIGINT ignored, and they start others so.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let ignores_int = u64::from_str_radix(ignored.trim(), 16).unwrap() & 1 << (Signal::INT.as_raw() - 1) != 0;
    let signals = [Signal::KILL, Signal::TERM, Signal::INT];
    for signal in signals.into_iter().filter(|signal| *signal != Signal::INT || !ignores_int) {
        let mut run = hosts.dozing();
        kill_process(Pid::from_child(&run), signal).unwrap();
        assert!(!run.wait().unwrap().success());
        hosts.wait_for_end();
    }
}

fn no_process_is_left_when_ssh_or_its_starter_is_killed() {
    let Some(hosts) = Hosts::new("ssh") else { return };
    for (word, name) in [("exec /bin/sh", "ssh client"), ("start-node", "launcher")] {
        let run = hosts.dozing();
        let is_it = |process: &Process| process.command_line.contains(word) && process.has(&hosts.word());
        processes().into_iter().find(is_it).unwrap().kill();
        let text = err(&run.wait_with_output().unwrap());
        let why = format!("its {name} ended: signal: 9 (SIGKILL)\n");
        assert!(text.contains(&format!("node 1 (alpha) with worker 1 lost: {why}")), "{text}");
        assert_eq!(text.contains(&format!("disco: node 1: host alpha: {why}")), name == "ssh client", "{text}");
        hosts.wait_for_end();
    }
}

fn a_killed_node_is_an_error_that_names_its_host() {
    let Some(hosts) = Hosts::new("node") else { return };
    let run = hosts.dozing();
    let is_node = |process: &Process| {
        let is_program = process.command_line.starts_with(hello().to_str().unwrap()) && process.has(&hosts.word());
        is_program && process.environment.contains("\nDISCO_NODE_ID=1\n")
    };
    processes().into_iter().find(is_node).unwrap().kill();
    let text = err(&run.wait_with_output().unwrap());
    let ended = format!("disco: node 1: host alpha: `{}` ended: signal: 9 (SIGKILL)\n", hello().display());
    assert!(text.contains(&ended), "{text}");
    assert!(text.contains("node 1 (alpha) with worker 1 lost: its connection was closed\n"), "{text}");
    hosts.wait_for_end();
}

fn a_lost_host_is_replaced_by_a_new_connection() {
    let Some(hosts) = Hosts::new("replace") else { return };
    let ran = hosts.disco("replace", &["--hosts", "localhost,alpha"]).arg("--").arg(hello()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let lost = "node 1 (alpha) with worker 1 lost: its connection was closed";
    assert_eq!(out(&ran), format!("{lost}\nreplaced [WorkerId(1)]\n"));
}
