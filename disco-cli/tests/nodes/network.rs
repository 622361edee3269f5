//! Networks that drop packets, in network namespaces. Tests are skipped if this user can't make namespaces.

use std::net::TcpListener;
use std::process::{ExitCode, Stdio};

use disco::{Tensor, WorkerId};
use disco_testing::namespaces::{self, Namespaces};

use super::{DISCO, Folder, PROGRAM, err, hello};

crate::trials::tests!("nodes::network":
    a_path_that_drops_large_packets_is_a_loss_that_names_the_mtu,
    a_node_whose_packets_are_dropped_prints_that_there_is_no_answer,
    nodes_of_a_machine_with_the_loopback_of_ipv6_only_are_one_session,
);

/// Packets of more than 1,000 bytes from `a` to `b` are dropped by the router `r`, which has no route for its reports to
/// `a`. Those from `b` to `a` go by a direct cable.
const BLACK_HOLE: &str = "
for name in a r b; do ip netns add $1$name; done
ip link add ar netns $1a type veth peer name ra netns $1r
ip link add rb netns $1r type veth peer name br netns $1b
ip link add ab netns $1a type veth peer name ba netns $1b
up() { ip -n $1 address add $3/24 dev $2; ip -n $1 link set dev $2 up; }
up $1a ar 10.92.1.1; up $1r ra 10.92.1.2; up $1r rb 10.92.2.1; up $1b br 10.92.2.2; up $1a ab 10.92.9.1; up $1b ba 10.92.9.2
ip -n $1r link set dev rb mtu 1000
ip -n $1a route add 10.92.9.2/32 via 10.92.1.2
ip -n $1r route add 10.92.9.2/32 via 10.92.2.2
for name in a r b; do
    ip netns exec $1$name sh -c 'for file in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $file; done; echo 1 > /proc/sys/net/ipv4/ip_forward'
done
";

fn nothing(_: &mut disco::WorkerContext) -> disco::Result<()> {
    Ok(())
}

disco::register_function!("nodes.nothing", nothing);

/// `main` of a program that sends a large tensor to the worker of another node.
pub(crate) fn send() -> ExitCode {
    disco::init();
    let session = disco::from_env().unwrap();
    let sent = disco::block_on(async {
        session.sync_all().await?;
        println!("started");
        let handle = session.call(&session.function("nodes.nothing").await?, ()).await?;
        let tensor = Tensor::from_slice(&vec![1.0_f32; 1 << 20], [1 << 20])?;
        session.set(&handle, WorkerId::new(1), tensor.into()).await
    });
    match sent {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn a_path_that_drops_large_packets_is_a_loss_that_names_the_mtu() {
    if !namespaces::may_make() {
        return;
    }
    let folder = Folder::new("mtu");
    let path = folder.token();
    let machines = Namespaces::make("mtu", BLACK_HOLE);
    let mut run = machines.command("a", DISCO);
    run.env(PROGRAM, "send").args(["run", "--nodes", "2", "--listen", "10.92.9.1:4567", "--token-file"]).arg(&path);
    let run = run.arg("--").arg(hello()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut node = machines.command("b", DISCO);
    node.env(PROGRAM, "send").args(["worker", "--connect", "10.92.9.1:4567", "--token-file"]).arg(&path);
    let node = node.arg("--").arg(hello()).stderr(Stdio::piped()).spawn().unwrap();
    let run = run.wait_with_output().unwrap();
    assert_eq!(run.stdout, b"started\n", "{run:?}");
    let text = err(&run);
    let lost = text.lines().find(|line| line.starts_with("node 1 (")).unwrap_or_else(|| panic!("{text}"));
    assert!(lost.contains(") with worker 1 lost: its machine has not acknowledged about "), "{text}");
    assert!(lost.contains("packets of full size may be dropped on the way; compare the MTU"), "{text}");
    let told = err(&node.wait_with_output().unwrap());
    assert!(told.contains("disco: the controller lost: no message came from it for 5s"), "{told}");
}

fn a_node_whose_packets_are_dropped_prints_that_there_is_no_answer() {
    if !namespaces::may_make() {
        return;
    }
    let folder = Folder::new("dropped");
    let path = folder.token();
    // The other end of the cable drops all packets, since they are for another machine.
    let script = "ip netns add $1a; ip -n $1a link add cable type veth peer name end; \
                  ip -n $1a address add 10.93.0.1/24 dev cable; ip -n $1a link set dev cable up; ip -n $1a link set dev end up; \
                  ip -n $1a neighbor add 10.93.0.2 lladdr 02:00:00:00:00:01 dev cable";
    let machines = Namespaces::make("drop", script);
    let mut node = machines.command("a", DISCO);
    node.args(["worker", "--connect", "10.93.0.2:4567", "--wait", "1", "--token-file"]).arg(&path);
    let text = err(&node.output().unwrap());
    let start = "disco: joining the controller at 10.93.0.2:4567: no end after 1s: no answer within ";
    assert!(
        text.contains(start) && text.contains(": a firewall drops the packets, or the machine is not up"),
        "{text}"
    );
    let mut status = machines.command("a", DISCO);
    status.args(["status", "--connect", "10.93.0.2:4567", "--token-file"]).arg(&path);
    let text = err(&status.output().unwrap());
    assert!(text.contains("no answer within 5.0s: a firewall drops the packets, or the machine is not up"), "{text}");
}

fn nodes_of_a_machine_with_the_loopback_of_ipv6_only_are_one_session() {
    if !namespaces::may_make() {
        return;
    }
    if let Err(error) = TcpListener::bind("[::1]:0") {
        return println!("skipped: this machine has no IPv6: {error}");
    }
    let script = "ip netns add $1a; ip -n $1a link set dev lo up; ip -n $1a address del 127.0.0.1/8 dev lo";
    let machines = Namespaces::make("six", script);
    let mut ping = machines.command("a", DISCO);
    let pinged = ping.args(["ping", "--session", "nodes", "--nodes", "3", "--workers", "3", "--rounds", "1"]).output();
    let pinged = pinged.unwrap();
    assert!(pinged.status.success(), "{pinged:?}");
}
