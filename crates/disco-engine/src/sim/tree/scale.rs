//! Sessions of many nodes with measured costs: how long commands, syncs, the start and aborts take, by fan-out.
//!
//! Links have a latency of 20 µs. The table is that of docs/maintainers/performance.md.

use disco_core::{Command, RegisterId};

use super::costs::Costs;
use super::world::{Entry, MICRO, Nanos, SECOND, World};

/// Workers of each node.
const PER_NODE: u32 = 8;
const LATENCY: Nanos = 20 * MICRO;
/// Commands and syncs of which the median is taken.
const ROUNDS: u64 = 7;
/// Time between two of them for each child, and in addition: longer than frames linger, so that each is sent at once.
const PAUSE: (Nanos, Nanos) = (50 * MICRO, 2000 * MICRO);

/// The results of one fan-out, in nanoseconds.
struct Row {
    start: Nanos,
    command: Nanos,
    sync: Nanos,
    /// From the deaths until the controller knows of the first, and until all nodes have stopped.
    loss: Nanos,
    abort: Nanos,
    depth: u32,
}

impl World {
    /// Lets virtual time pass.
    fn pause(&mut self, children: usize) {
        let until = self.clock + PAUSE.0 * children as Nanos + PAUSE.1;
        self.run(|world| world.now >= until);
    }
}

fn median(mut times: Vec<Nanos>) -> Nanos {
    times.sort_unstable();
    times[times.len() / 2]
}

fn row(nodes: usize, fan_out: usize, costs: Costs) -> Row {
    let forest = crate::tree::Forest::grow(nodes, fan_out, |_| false);
    let mut world = World::new((nodes, PER_NODE, fan_out), LATENCY..LATENCY + 1, costs, 1);
    let (start, children) = (world.start().unwrap(), forest.children().count());
    let (mut commands, mut syncs) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        world.pause(children);
        let begun = world.command(2 * round + 1, Command::KillReg { register: RegisterId::new(1) });
        world.run(|world| world.reached == nodes);
        let last = world.ends.iter().map(|end| end.passed.1).max().unwrap();
        commands.push(last - begun);
        world.pause(children);
        let begun = world.command(2 * round + 2, Command::SyncAll);
        world.run(World::is_synced);
        assert!(world.is_synced(), "{:?}", world.events.broken);
        let now = world.clock;
        world.ends[0].free_at = now;
        syncs.push(world.turn(0, World::collect_replies).max(now) - begun);
    }
    world.pause(children);
    let died = world.clock;
    for dead in 0..(nodes / 100).max(1) {
        // Spread over the tree: the first dead nodes are relays.
        world.at(died, Entry::Kill(1 + dead * 100));
    }
    world.run(|world| !world.lost.is_empty());
    let loss = world.lost[0].0 - died;
    // The session has sent the abort.
    let until = world.now + 20 * SECOND;
    world.run(|world| world.stopped == nodes || world.now > until);
    let last = world.ends.iter().filter_map(|end| end.stopped_at).max().unwrap();
    assert!(world.events.broken.is_none(), "{:?}", world.events.broken);
    Row { start, command: median(commands), sync: median(syncs), loss, abort: last - died, depth: forest.depth() }
}

/// 10000 nodes with `DISCO_LONG_TESTS`.
#[test]
fn many_nodes_are_reached_sooner_through_a_tree_than_one_by_one() {
    let nodes = if std::env::var_os("DISCO_LONG_TESTS").is_some() { 10_000 } else { 300 };
    let costs = Costs::measured();
    let ms = |time: Nanos| time as f64 / 1e6;
    println!(
        "{nodes} nodes of {PER_NODE} workers, {} us a link; on this machine: {:.1} us to send a message, {:.1} us to receive \
         one, {:.1} us to wake a thread",
        LATENCY / MICRO,
        costs.send as f64 / 1e3,
        costs.receive as f64 / 1e3,
        costs.wake as f64 / 1e3,
    );
    println!("| fan-out | depth | command to all | sync of all | start | loss of 1 % known | all stopped |");
    println!("|---|---|---|---|---|---|---|");
    let rows = [usize::MAX, 8, 16, 32, 64, 128].map(|fan_out| {
        let row = row(nodes, fan_out, costs);
        let name = if fan_out == usize::MAX { "flat".to_owned() } else { fan_out.to_string() };
        println!(
            "| {name} | {} | {:.2} ms | {:.2} ms | {:.0} ms | {:.2} ms | {:.1} ms |",
            row.depth,
            ms(row.command),
            ms(row.sync),
            ms(row.start),
            ms(row.loss),
            ms(row.abort)
        );
        row
    });
    // In virtual time, of which only the engines' share depends on this machine's load.
    let [flat, _, _, tree, _, _] = rows;
    assert!(tree.command < flat.command && tree.sync < flat.sync);
}
