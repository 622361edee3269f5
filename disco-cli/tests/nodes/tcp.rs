//! The backend `tcp` between machines that are network namespaces.

use std::io::{BufRead as _, BufReader};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use disco::prelude::*;
use disco::{DType, Error, Op, Rank, Reduction, Tensor};
use disco_testing::namespaces::{self, Namespaces};

use super::{DISCO, Folder, PROGRAM, hello};

crate::trials::tests!("nodes::tcp":
    workers_of_two_machines_add_tensors_over_tcp,
    a_rank_reports_that_the_machine_of_another_rank_is_cut_off,
    ranks_connect_if_one_of_several_addresses_leads_from_one_to_the_other,
    ranks_without_a_common_network_name_the_addresses_that_both_have_tried,
    two_machines_with_a_cable_and_no_configuration_are_one_session,
);

/// Numbers of elements: one round, and two rounds with shares that are not equal.
const COUNTS: [usize; 3] = [1, 1000, 100_003];

/// Element `index` of the tensor of a rank, whose sum over the ranks depends on their order.
fn element(rank: usize, index: usize) -> f32 {
    [1e8, 1.0, -1e8, 0.125][(rank + index) % 4] * (1.0 + index as f32)
}

/// The sum of element `index` over ranks, in the tree of all data planes on hosts.
fn tree(ranks: Range<usize>, index: usize) -> f32 {
    if ranks.len() == 1 {
        return element(ranks.start, index);
    }
    let middle = ranks.start + ranks.len().next_power_of_two() / 2;
    tree(ranks.start..middle, index) + tree(middle..ranks.end, index)
}

/// Worker function: adds tensors of all ranks, and sends one around the ring.
fn add(ctx: &mut WorkerContext) -> disco::Result<()> {
    let comm = ctx.comm()?;
    let (rank, size) = (comm.rank().index(), comm.size());
    for count in COUNTS {
        let mine: Vec<f32> = (0..count).map(|index| element(rank, index)).collect();
        let (mine, sum) = (Tensor::from_slice(&mine, [count])?, Tensor::zeros(DType::F32, [count])?);
        comm.all_reduce(&mine, &sum, Reduction::Sum)?;
        if let Some(index) = (0..count).find(|index| sum.view::<f32>().unwrap()[*index] != tree(0..size, *index)) {
            return Err(Error::state(format!("element {index} of {count} is wrong")));
        }
        // The result of other ranks than the root is ignored, even if it is where their input is.
        let all = mine.to_vec::<f32>()?;
        let input = Tensor::from_slice(&all, [count])?;
        comm.reduce(&input, Some(&input), Reduction::Sum, Rank::new(1))?;
        if rank == 1 && input.to_vec::<f32>()? != sum.to_vec::<f32>()? {
            return Err(Error::state(format!("the sum of {count} elements on rank 1 is wrong")));
        }
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let [to, from] = [next, previous].map(|rank| Rank::new(rank as u32));
        comm.enqueue(&[Op::Send { src: mine, to }, Op::Recv { dst: sum.clone(), from }])?;
        if sum.view::<f32>()?[count - 1] != element(previous, count - 1) {
            return Err(Error::state(format!("rank {previous} sent something else")));
        }
    }
    Ok(())
}

disco::register_function!("tcp.add", add);

/// `main` of a program that adds over `tcp`.
pub(crate) fn main() -> ExitCode {
    disco::init();
    let session = disco::from_env().unwrap();
    disco::block_on(async {
        session.init_ccl("tcp", &[]).await?;
        session.call("tcp.add", ()).await?;
        session.sync_all().await?;
        println!("{} workers on {} machines agree", session.world().size(), session.world().nodes());
        session.shutdown().await
    })
    .map_or_else(
        |error: Error| {
            eprintln!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// Encrypted, and in clear.
fn workers_of_two_machines_add_tensors_over_tcp() {
    if !namespaces::may_make() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/two_machines.sh");
    for encrypts in ["1", "0"] {
        let mut run = Command::new("sh");
        run.env(PROGRAM, "add").env("DISCO_ENCRYPT", encrypts).arg(&script).arg(DISCO).arg(hello());
        let ran = run.output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        assert_eq!(String::from_utf8_lossy(&ran.stdout), "4 workers on 2 machines agree\n");
    }
}

/// Worker function: why a barrier ends that worker 1 does not enter in time.
fn meet(ctx: &mut WorkerContext) -> disco::Result<String> {
    if ctx.worker().index() == 1 {
        thread::sleep(Duration::from_secs(60));
    }
    Ok(ctx.comm()?.barrier().map_or_else(|error| error.to_string(), |()| "it is over".to_owned()))
}

disco::register_function!("tcp.meet", meet);

/// `main` of a program that prints why a barrier ends.
pub(crate) fn cut() -> ExitCode {
    disco::init();
    let session = disco::from_env().unwrap();
    let ended = disco::block_on(async {
        session.init_ccl("tcp", &[]).await.unwrap();
        let ended = session.call_returning(disco::WorkerId::new(0), "tcp.meet", ()).await.unwrap();
        println!("waiting");
        ended.await.unwrap().to_string()
    });
    println!("{ended}");
    ExitCode::SUCCESS
}

/// `main` of a program that connects its workers, within 3 s.
pub(crate) fn reach() -> ExitCode {
    disco::init();
    let session =
        disco::Settings::from_env().unwrap().builder().connect_deadline(Duration::from_secs(3)).start().unwrap();
    let reached = disco::block_on(async {
        session.init_ccl("tcp", &[]).await?;
        session.call("tcp.add", ()).await?;
        session.sync_all().await?;
        println!("connected");
        session.shutdown().await
    });
    reached.map_or_else(
        |error| {
            println!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

/// The machine `c` with a cable to `a` and one to `b`, and a cable between `a` and `b`, which reach no further: packets of `a` and
/// `b` to each other's cables to `c` are dropped without an answer.
const TRIANGLE: &str = "
for name in a b c; do ip netns add $1$name; ip -n $1$name link set dev lo up; done
ip link add ac netns $1a type veth peer name ca netns $1c
ip link add bc netns $1b type veth peer name cb netns $1c
ip link add ab netns $1a type veth peer name ba netns $1b
up() { ip -n $1 address add $3/24 dev $2; ip -n $1 link set dev $2 up; }
up $1a ac 10.95.1.2; up $1c ca 10.95.1.1; up $1b bc 10.95.2.2; up $1c cb 10.95.2.1; up $1a ab 10.95.3.1; up $1b ba 10.95.3.2
ip -n $1b route add 10.95.1.2/32 via 10.95.2.1; ip -n $1a route add 10.95.2.2/32 via 10.95.1.1
ip netns exec $1c sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward'
for end in a/ac a/ab b/bc b/ba c/ca c/cb; do
    until ip -n $1${end%/*} link show dev ${end#*/} | grep -q 'state UP'; do sleep 0.05; done
done
";

/// The output of the program `reach` with a worker on each machine: worker 0 on `c`, 1 on `a` and 2 on `b`, with these variables.
fn reach_in(machines: &Namespaces, variables: [&[(&str, &str)]; 2]) -> String {
    let folder = Folder::new(&machines.name("reach"));
    let token = folder.token();
    let mut run = machines.command("c", DISCO);
    run.env(PROGRAM, "reach").args(["run", "--nodes", "3", "--listen", "0.0.0.0:4571", "--token-file"]).arg(&token);
    let run = run.arg("--").arg(hello()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut nodes = Vec::new();
    for ((name, controller, id), variables) in
        [("a", "10.95.1.1:4571", "1"), ("b", "10.95.2.1:4571", "2")].into_iter().zip(variables)
    {
        let mut node = machines.command(name, DISCO);
        node.env(PROGRAM, "reach").env("DISCO_NODE_ID", id).envs(variables.iter().copied());
        node.args(["worker", "--connect", controller, "--token-file"]).arg(&token).arg("--").arg(hello());
        nodes.push(node.stderr(Stdio::null()).spawn().unwrap());
    }
    let said = String::from_utf8(run.wait_with_output().unwrap().stdout).unwrap();
    for mut node in nodes {
        node.wait().unwrap();
    }
    said
}

/// Ranks give others first their address on the cable to `c`, which `b` and `a` do not reach from each other.
fn ranks_connect_if_one_of_several_addresses_leads_from_one_to_the_other() {
    if !namespaces::may_make() {
        return;
    }
    let machines = Namespaces::make("triangle", TRIANGLE);
    assert_eq!(reach_in(&machines, [&[], &[]]), "connected\n");
    // Rank 2 does not reach rank 1, but rank 1 reaches rank 2.
    assert_eq!(reach_in(&machines, [&[("DISCO_TCP_INTERFACES", "ac")], &[]]), "connected\n");
    let set = |name: &str, setting: &str| {
        let script = format!("for file in /proc/sys/net/ipv6/{setting}; do echo 1 > $file; done");
        let set = Command::new("ip").args(["netns", "exec", &machines.name(name), "sh", "-c", &script]).status();
        assert!(set.unwrap().success());
    };
    // Sockets for IPv6 take no connections over IPv4 on two machines, and the third one has no IPv6.
    ["a", "c"].into_iter().for_each(|name| set(name, "bindv6only"));
    set("b", "conf/*/disable_ipv6");
    assert_eq!(reach_in(&machines, [&[], &[]]), "connected\n");
}

fn ranks_without_a_common_network_name_the_addresses_that_both_have_tried() {
    if !namespaces::may_make() {
        return;
    }
    let machines = Namespaces::make("apart", TRIANGLE);
    let said = reach_in(&machines, [&[("DISCO_TCP_INTERFACES", "ac")], &[("DISCO_TCP_INTERFACES", "bc")]]);
    for part in [
        "no end after 3s: no connection to rank ",
        "rank 1",
        "tried 10.95.2.2:",
        "rank 2",
        "tried 10.95.1.2:",
        "no answer",
    ] {
        assert!(said.contains(part), "no `{part}` in {said}");
    }
    let said = reach_in(&machines, [&[("DISCO_TCP_INTERFACES", "eth7")], &[]]);
    assert!(said.contains("DISCO_TCP_INTERFACES: this machine has no interface `eth7` that is up and has an address; it has ab, ac, lo"), "{said}");
}

/// The machines have only the addresses that IPv6 gives to each interface; the cable is interface 2 of both.
fn two_machines_with_a_cable_and_no_configuration_are_one_session() {
    if !namespaces::may_make() {
        return;
    }
    let script = "for name in a b; do ip netns add $1$name; ip -n $1$name link set dev lo up; done
        ip link add cable netns $1a address 02:00:00:00:00:01 type veth peer name cable netns $1b
        for name in a b; do
            ip netns exec $1$name sh -c 'echo 0 > /proc/sys/net/ipv6/conf/cable/accept_dad'; ip -n $1$name link set dev cable up
        done";
    let (machines, folder) = (Namespaces::make("cable", script), Folder::new("cable"));
    let token = folder.token();
    let mut node = machines.command("b", DISCO);
    node.env(PROGRAM, "reach").args(["worker", "--connect", "[fe80::ff:fe00:1%2]:4572", "--token-file"]).arg(&token);
    let mut node = node.arg("--").arg(hello()).stderr(Stdio::null()).spawn().unwrap();
    let mut run = machines.command("a", DISCO);
    run.env(PROGRAM, "reach").args(["run", "--nodes", "2", "--listen", "[::]:4572", "--token-file"]).arg(&token);
    let ran = run.arg("--").arg(hello()).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "connected\n", "{ran:?}");
    node.wait().unwrap();
}

/// Two machines with one cable.
const CABLE: &str = "
for name in a b; do ip netns add $1$name; done
ip link add ab netns $1a type veth peer name ba netns $1b
up() { ip -n $1 address add $3/24 dev $2; ip -n $1 link set dev $2 up; ip -n $1 link set dev lo up; }
up $1a ab 10.94.0.1; up $1b ba 10.94.0.2
";

/// The data plane itself reports it, before the control plane has been silent for its limit of 5 s.
fn a_rank_reports_that_the_machine_of_another_rank_is_cut_off() {
    if !namespaces::may_make() {
        return;
    }
    let (machines, folder) = (Namespaces::make("tcp", CABLE), Folder::new("tcp"));
    let token = folder.0.join("session.token");
    assert!(Command::new(DISCO).arg("token").arg(&token).status().unwrap().success());
    let mut node = machines.command("b", DISCO);
    node.env(PROGRAM, "cut").args(["worker", "--connect", "10.94.0.1:4570", "--token-file"]).arg(&token);
    let node = node.arg("--").arg(hello()).stderr(Stdio::null()).spawn().unwrap();
    let mut run = machines.command("a", DISCO);
    run.env(PROGRAM, "cut").args([
        "run",
        "--nodes",
        "2",
        "--workers",
        "2",
        "--listen",
        "10.94.0.1:4570",
        "--token-file",
    ]);
    let mut run = run.arg(&token).arg("--").arg(hello()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("waiting"));
    let cut = Command::new("ip").args(["-n", &machines.name("b"), "link", "set", "dev", "ba", "down"]).status();
    assert!(cut.unwrap().success());
    let why = lines.next().unwrap();
    assert_eq!(why.trim_matches('"'), "rank 1 lost: its machine does not acknowledge what this one sends");
    [run, node].iter_mut().for_each(|end| {
        end.kill().unwrap();
        end.wait().unwrap();
    });
}
