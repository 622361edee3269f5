//! Faults of machines under load, with `DISCO_LONG_TESTS`. Three machines, which are network namespaces, compute the texts over the
//! backend `tcp`, and one more stands by. Machines are killed, stopped and cut off in the middle of texts. All texts must be those of
//! the undisturbed server. `DISCO_SOAK_FAULTS` is the number of faults.

use std::env;
use std::mem;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use disco_testing::namespaces::{self, Namespaces};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::mix::Seed;
use super::random::Random;
use super::server::{Server, model, program};
use super::under_load;

const FAULTS: usize = 100;
/// Answers between two faults.
const ANSWERS: usize = 10;
/// Prefix of the machines' names, for the part of this test that runs on the first machine.
const MACHINES: &str = "DISCO_TEST_MACHINES";
const ADDRESS: &str = "10.96.0.1:4573";

/// Machine `a` is the hub of the others: its end of the cable to machine `b` is `tob`.
const NETWORK: &str = "
for name in a b c d; do ip netns add $1$name; ip -n $1$name link set dev lo up; done
ip -n $1a link add hub type bridge
ip -n $1a address add 10.96.0.1/24 dev hub
ip -n $1a link set dev hub up
number=1
for name in b c d; do
    number=$((number + 1))
    ip link add to$name netns $1a type veth peer name hub netns $1$name
    ip -n $1a link set dev to$name master hub up
    ip -n $1$name address add 10.96.0.$number/24 dev hub
    ip -n $1$name link set dev hub up
done
";

/// What happens to a machine.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    Stop,
    Cut,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Kill, Self::Stop, Self::Cut];
}

/// The program on another machine than the first one. Its processes are a group, which is killed on drop.
struct Node {
    machine: &'static str,
    prefix: String,
    process: Child,
}

fn with_token(mut command: Command) -> Command {
    command.env("DISCO_TOKEN", "0123456789abcdef0123456789abcdef");
    command
}

impl Node {
    /// Joins the server.
    fn join(prefix: &str, machine: &'static str) -> Self {
        let mut command = with_token(Command::new("ip"));
        command.args(["netns", "exec", &format!("{prefix}{machine}"), env!("CARGO_BIN_EXE_disco-serve")]);
        command.env("DISCO_CONNECT", ADDRESS).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.process_group(0).spawn().unwrap();
        Self { machine, prefix: prefix.to_owned(), process }
    }

    fn meet(&self, fault: Fault) {
        match fault {
            Fault::Kill => self.signal(Signal::SIGKILL),
            Fault::Stop => self.signal(Signal::SIGSTOP),
            Fault::Cut => self.set_cable("down"),
        }
    }

    fn signal(&self, signal: Signal) {
        // The processes may have ended.
        _ = killpg(Pid::from_raw(self.process.id() as i32), signal);
    }

    fn set_cable(&self, state: &str) {
        let (hub, cable) = (format!("{}a", self.prefix), format!("to{}", self.machine));
        let set = Command::new("ip").args(["-n", &hub, "link", "set", "dev", &cable, state]).status();
        assert!(set.unwrap().success());
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        _ = self.process.wait();
    }
}

/// The part on the first machine.
fn faults(prefix: &str) {
    let count = env::var("DISCO_SOAK_FAULTS").ok().and_then(|count| count.parse().ok()).unwrap_or(FAULTS);
    let seed = Seed(Seed::first());
    let mut random = Random::new(seed.0);
    let mut active = ["b", "c"].map(|machine| Node::join(prefix, machine));
    let mut controller = with_token(program());
    controller.env("DISCO_NODES", "3").env("DISCO_LISTEN", ADDRESS);
    let server = Server::start_as(controller, &model("llama-3"), &["--workers", "3", "--step-deadline", "2"]);
    let mut ready = Node::join(prefix, "d");
    let (start, mut longest, mut counts) = (Instant::now(), Duration::ZERO, [0; Fault::ALL.len()]);
    under_load(&server, |wait_for| {
        for _ in 0..count {
            let (fault, victim) = (random.pick(&Fault::ALL), random.below(active.len()));
            // At any moment of a step.
            random.pause(Duration::from_millis(20));
            let struck = Instant::now();
            active[victim].meet(fault);
            wait_for(ANSWERS);
            longest = longest.max(struck.elapsed());
            counts[fault as usize] += 1;
            // The machine comes back with a new program, and stands by.
            let machine = active[victim].machine;
            active[victim] = mem::replace(&mut ready, Node::join(prefix, machine));
            ready.set_cable("up");
        }
    });
    let repairs = server.metric("disco_serve_repairs_total").unwrap();
    let [kills, stops, cuts] = counts;
    eprintln!(
        "seed {}: {kills} kills, {stops} stops and {cuts} cuts of machines in {:?}, {repairs} repairs, {longest:?} at most from a \
         fault to {ANSWERS} answers",
        seed.0,
        start.elapsed()
    );
    assert!(repairs >= count as f64, "{repairs} repairs after {count} faults");
}

#[test]
fn all_texts_outlive_faults_of_machines_over_tcp() {
    if env::var_os("DISCO_LONG_TESTS").is_none() {
        return eprintln!("skipped: the faults of machines run with DISCO_LONG_TESTS=1 only");
    }
    if let Ok(prefix) = env::var(MACHINES) {
        return faults(&prefix);
    }
    if !namespaces::may_make() {
        return;
    }
    let machines = Namespaces::make("serve", NETWORK);
    let mut inside = machines.command("a", env::current_exe().unwrap());
    inside.env(MACHINES, machines.name(""));
    let test = "program::faults::all_texts_outlive_faults_of_machines_over_tcp";
    assert!(inside.args(["--exact", test, "--nocapture"]).status().unwrap().success());
}
