//! Tests of the controller's engine, without a clock or sockets.

mod joining;
mod logs;
mod processes;
mod replies;
mod standby;
mod trees;
mod visitors;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disco_core::channel::Signal;
use disco_core::wire::{Assignment, Hello, Join, Message, Packet, Times, Welcome};
use disco_core::worker::WorkerConfig;
use disco_core::{Calling, Command, Frame, RegisterId, WorkerId, WorkerRange, World, function};

use super::{Action, Conn, Controller, Event, Missing, NodeTerms, Order, Origin, Terms, Tree};
use crate::handshake::{GREETING_BYTES, NodeHandshake, Request, Secret, VERDICT_BYTES};
use crate::token::Token;

/// Sessions of more nodes are trees.
const FAN_OUT: usize = 4;
const MS: Duration = Duration::from_millis(1);
const SILENCE: Duration = Duration::from_secs(5);
const TOKEN: &str = "a secret of many words";

fn secret(token: &str) -> Secret {
    Secret { token: Token::new(token).unwrap(), encrypts: true }
}

/// An engine with its recorded writes and actions.
struct Bench {
    engine: Controller,
    start: Instant,
    now: Instant,
    /// Written bytes that were not read yet.
    written: Vec<(Conn, Vec<u8>, Order)>,
    done: Vec<Action>,
}

fn conn(slot: u32) -> Conn {
    Conn { slot, generation: 0 }
}

fn functions() -> Vec<String> {
    function::names().into_iter().map(str::to_owned).collect()
}

impl Bench {
    /// A lane to `nodes` nodes with two workers each.
    fn nodes(nodes: usize) -> Self {
        Self::nodes_with(nodes, SILENCE, true)
    }

    /// [`Self::nodes`] with another silence timeout, and perhaps without accepting connections after the start.
    fn nodes_with(nodes: usize, silence: Duration, stays_open: bool) -> Self {
        Self::nodes_of(nodes, silence, (stays_open, false))
    }

    fn nodes_of(nodes: usize, silence: Duration, (stays_open, has_standby): (bool, bool)) -> Self {
        let world = World::new(2 * nodes, 1).unwrap();
        let workers = WorkerRange::new(0..2 * nodes as u32);
        let (secret, names) = (secret(TOKEN), Vec::new());
        let tree = Tree::Any { first: 1, nodes, fan_out: FAN_OUT };
        let terms = NodeTerms {
            secret,
            world,
            tree,
            names,
            per_node: 2,
            silence,
            max_pending: 256,
            stays_open,
            has_standby,
            missing: Missing::default(),
            report: |_| {},
        };
        let (heartbeat, start) = (1000 * MS, 30_000 * MS);
        let config = WorkerConfig::new(world);
        let assignment =
            Assignment { node: 0, workers, behind: [].into(), processes: true, config, heartbeat, silence, start };
        Self::new(Terms::Nodes(terms, assignment))
    }

    /// A lane to two child processes.
    fn processes() -> Self {
        let mut bench = Self::foreign_processes();
        (0..2).for_each(|peer| bench.on(Event::Started(peer, Some(100 + peer as u32))));
        bench
    }

    /// A lane to two processes that were started elsewhere.
    fn foreign_processes() -> Self {
        let config = WorkerConfig::new(World::new(2, 1).unwrap());
        let welcome = Welcome { config, ring: None, heartbeat: 1000 * MS };
        let workers = WorkerRange::new(0..2);
        let (token, start) = (TOKEN.as_bytes().into(), 30_000 * MS);
        Self::new(Terms::Processes { workers, token, welcome, start, silence: SILENCE })
    }

    fn new(terms: Terms) -> Self {
        let start = Instant::now();
        let engine = Controller::new(terms, start);
        Self { engine, start, now: start, written: Vec::new(), done: Vec::new() }
    }

    fn on(&mut self, event: Event) {
        self.engine.handle(event, self.now);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(write) = self.engine.next_write() {
            self.written.push((write.conn, write.bytes.to_vec(), write.order));
        }
        while let Some(action) = self.engine.next_action() {
            self.done.push(action);
        }
    }

    /// Submits a frame. The reactor must be woken for a timeout that is earlier than before.
    fn submit(&mut self, frame: &Frame) {
        let before = self.engine.next_timeout();
        self.engine.submit(frame, self.now).unwrap();
        let after = self.engine.next_timeout();
        let is_earlier = after.is_some_and(|after| before.is_none_or(|before| after < before));
        assert!(self.engine.take_wake() || !is_earlier, "the reactor is not woken for the timeout {after:?}");
    }

    fn send_from(&mut self, slot: u32, message: Message) {
        self.on(Event::Message(conn(slot), message));
    }

    /// Lets time pass, with a timer event at each timeout.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(timeout) = self.engine.next_timeout().filter(|timeout| *timeout <= end) {
            self.now = self.now.max(timeout);
            self.on(Event::Timer);
        }
        self.now = end;
    }

    /// The messages written to a connection since the last call.
    fn sent_to(&mut self, slot: u32) -> Vec<String> {
        let (mine, others) = std::mem::take(&mut self.written).into_iter().partition(|(to, ..)| *to == conn(slot));
        self.written = others;
        mine.into_iter()
            .map(|(_, bytes, _)| {
                let (packet, _) = Packet::split(&bytes).unwrap();
                let text = Message::decode(packet).unwrap().to_string();
                text.split([' ', '(']).next().unwrap().to_owned()
            })
            .collect()
    }

    /// The actions since the last call, without those on connections.
    fn done(&mut self) -> Vec<String> {
        let done = std::mem::take(&mut self.done).into_iter();
        let is_shown = |action: &Action| {
            !matches!(action, Action::Encrypt(..) | Action::Listen(..) | Action::Close(_) | Action::StopAccepting)
        };
        done.filter(is_shown)
            .map(|action| match action {
                Action::Started(Err(error)) => format!("failed: {error}"),
                Action::Lost(_, why) => why.to_string(),
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn is_closed(&self, slot: u32) -> bool {
        self.done.iter().any(|action| matches!(action, Action::Close(closed) if *closed == conn(slot)))
    }

    fn connect(&mut self, slot: u32) {
        let address = SocketAddr::from(([127, 0, 0, 1], 1000 + slot as u16));
        self.on(Event::Opened(conn(slot), Origin::Tcp { address, nonce: [slot as u8; 32] }));
    }

    /// Does a node's handshake, in pieces.
    fn prove(&mut self, slot: u32, token: &str, request: Request) {
        self.connect(slot);
        let greeting: [u8; GREETING_BYTES] = self.written.pop().unwrap().1.try_into().unwrap();
        let (node_handshake, answer) = NodeHandshake::answer(&secret(token), &greeting, request).unwrap();
        answer.chunks(10).for_each(|piece| self.on(Event::Bytes(conn(slot), piece.to_vec())));
        let verdict: [u8; VERDICT_BYTES] = self.written.pop().unwrap().1.try_into().unwrap();
        let is_taken = node_handshake.judge(&verdict).is_ok();
        assert_eq!(is_taken, self.done.iter().any(|action| matches!(action, Action::Listen(..))));
    }

    fn join(&mut self, slot: u32, node: Option<u32>) {
        self.ask_to_join(slot, node);
        self.pass(Duration::ZERO);
    }

    /// Joins before due timers are handled.
    fn ask_to_join(&mut self, slot: u32, node: Option<u32>) {
        self.prove(slot, TOKEN, Request { node, per_node: None });
        self.send_from(
            slot,
            Message::Join(Join { name: "host".into(), rack: String::new(), is_spare: false, functions: functions() }),
        );
    }

    /// A lane whose nodes have all started.
    fn running(nodes: usize) -> Self {
        Self::nodes(nodes).started(nodes)
    }

    fn started(self, nodes: usize) -> Self {
        let mut bench = self;
        (0..nodes as u32).for_each(|slot| bench.join(slot, None));
        (0..nodes as u32).for_each(|slot| bench.send_from(slot, Message::Ready));
        assert_eq!(bench.done(), ["Started(Ok(()))"]);
        bench.written.clear();
        bench
    }

    fn hello(&mut self, slot: u32, worker: u32) {
        self.on(Event::Opened(conn(slot), Origin::Unix { pid: Some(100 + worker) }));
        let token: Arc<[u8]> = TOKEN.as_bytes().into();
        self.send_from(
            slot,
            Message::Hello(Hello {
                token,
                worker: WorkerId::new(worker),
                thread: 900 + worker,
                functions: functions(),
            }),
        );
    }

    /// A lane whose processes have both joined.
    fn working() -> Self {
        let mut bench = Self::processes();
        (0..2).for_each(|worker| bench.hello(worker, worker));
        assert_eq!(bench.done(), ["Started(Ok(()))"]);
        assert_eq!([bench.sent_to(0), bench.sent_to(1)], [["Welcome"], ["Welcome"]]);
        bench
    }
}

fn frame(seq: u64, command: Command) -> Frame {
    Frame::new(seq, [], command)
}

fn call(seq: u64) -> Frame {
    frame(seq, Command::KillReg { register: RegisterId::new(1) })
}

#[test]
fn nodes_are_assigned_when_all_have_joined_and_the_lane_starts_when_all_are_ready() {
    let mut bench = Bench::nodes(2);
    bench.join(5, Some(2));
    assert!(bench.sent_to(5).is_empty() && bench.engine.accepts());
    bench.join(3, None);
    assert_eq!([bench.sent_to(5), bench.sent_to(3)], [["Assign"], ["Assign"]]);
    bench.send_from(3, Message::Ready);
    assert!(bench.done().is_empty());
    bench.send_from(5, Message::Ready);
    assert_eq!(bench.done(), ["Started(Ok(()))"]);
    bench.on(Event::Hung(conn(5), None));
    assert_eq!(bench.done(), ["node 2 (host) with workers 2 to 3 lost: its connection was closed"]);
}

#[test]
fn a_connection_without_the_token_is_refused_and_named_when_nodes_are_missing() {
    let mut bench = Bench::nodes(1);
    bench.prove(1, "another secret of many words", Request::default());
    assert!(bench.is_closed(1));
    bench.connect(2);
    bench.on(Event::Bytes(conn(2), b"GET".to_vec()));
    assert!(bench.is_closed(2));
    bench.done();
    bench.pass(31_000 * MS);
    let failed = bench.done().remove(0);
    assert_eq!(
        failed,
        "failed: start: no end after 30s: node 1 did not join; refused: 127.0.0.1:1001: its token does not match; \
         127.0.0.1:1002: it does not speak the Disco protocol"
    );
}

#[test]
fn unauthenticated_connections_time_out_and_the_oldest_is_evicted() {
    let mut bench = Bench::nodes(1);
    (0..256).for_each(|slot| bench.connect(slot));
    assert!(!bench.is_closed(0));
    bench.connect(256);
    assert!(bench.is_closed(0) && !bench.is_closed(1));
    bench.pass(4999 * MS);
    assert!(!bench.is_closed(256));
    bench.pass(MS);
    assert!((0..=256).all(|slot| bench.is_closed(slot)));
}

#[test]
fn accept_is_retried_after_the_system_fails() {
    let mut bench = Bench::nodes(1);
    bench.on(Event::Closed(io::Error::other("too many open files")));
    assert!(!bench.engine.accepts());
    bench.pass(100 * MS);
    assert!(bench.engine.accepts());
}

#[test]
fn a_silent_node_is_lost_unless_the_controller_did_not_run() {
    let mut bench = Bench::running(2);
    for _ in 0..6 {
        bench.pass(1000 * MS);
        bench.send_from(0, Message::Alive(Times::default()));
    }
    assert_eq!(bench.done(), ["node 2 (host) with workers 2 to 3 lost: no message came from it for 5s"]);
    // The controller has sent heartbeats meanwhile.
    assert!(bench.sent_to(0).len() >= 5);
    // The reactor thread did not run.
    bench.now += 60_000 * MS;
    bench.on(Event::Timer);
    assert!(bench.done().is_empty());
    bench.pass(SILENCE);
    assert_eq!(bench.done(), ["node 1 (host) with workers 0 to 1 lost: no message came from it for 5s", "Over"]);
}

#[test]
fn frames_linger_until_a_command_whose_reply_is_awaited_sends_them_at_once() {
    let mut bench = Bench::running(1);
    let now = bench.now;
    (1..4).for_each(|seq| bench.submit(&call(seq)));
    bench.drain();
    assert_eq!(bench.written.len(), 1);
    assert_eq!(bench.engine.next_timeout(), Some(now + MS / 10));
    bench.pass(MS / 10);
    assert_eq!(bench.written.len(), 2);
    bench.submit(&call(4));
    bench.submit(&frame(5, Command::SyncAll));
    bench.drain();
    assert_eq!(bench.written.len(), 3);
    // Of a call, a worker's answer is awaited.
    bench.submit(&call(6));
    let [register, function] = [1, 2].map(RegisterId::new);
    let calling = Calling { answers: Some(WorkerId::new(0)), ..Calling::default() };
    bench.submit(&frame(7, Command::CallWith { register, function, args: Vec::new(), calling: calling.into() }));
    bench.drain();
    assert_eq!(bench.written.len(), 4);
}

#[test]
fn a_packet_that_may_wait_for_others_goes_after_200_ms() {
    let mut bench = Bench::running(2);
    bench.submit(&frame(1, Command::SyncWorker { worker: WorkerId::new(0) }));
    bench.drain();
    assert_eq!(bench.written.iter().map(|(.., order)| *order).collect::<Vec<_>>(), [Order::Last, Order::Held]);
    bench.pass(199 * MS);
    assert!(bench.done().is_empty());
    bench.pass(MS);
    assert_eq!(bench.done(), ["Flush"]);
}

#[test]
fn a_lane_is_full_while_a_node_acknowledges_no_frames() {
    let mut bench = Bench::running(2);
    for seq in 1..=1024 {
        assert_eq!(bench.engine.room() as u64, 1025 - seq);
        bench.submit(&call(seq));
    }
    assert!(bench.engine.check(|| "lane".into()).unwrap_err().to_string().ends_with("lane: the lane is full"));
    // The last batch.
    bench.pass(MS);
    bench.done();
    bench.send_from(0, Message::Credit { frames: 1024, bytes: 0 });
    assert!(bench.done().is_empty());
    bench.send_from(1, Message::Credit { frames: 256, bytes: 0 });
    assert_eq!((bench.done(), bench.engine.room()), (vec!["Room".to_owned()], 256));
    bench.send_from(0, Message::Credit { frames: 1025, bytes: 0 });
    let lost = bench.done().swap_remove(0);
    assert!(lost.contains("it sent garbage: an acknowledgement of 1025 frames and 0 bytes, and 1024 and "), "{lost}");
}

#[test]
fn requests_and_failures_of_epochs_that_have_not_begun_are_garbage() {
    let mut bench = Bench::running(1);
    let ask = |epoch| Message::StoreRequest { id: 1, epoch, call: disco_core::wire::StoreCall::Get("key".into()) };
    bench.engine.note_effect(&Command::Recover { epoch: 1 });
    bench.send_from(0, ask(1));
    assert!(bench.done()[0].starts_with("CallStore "));
    bench.send_from(0, ask(2));
    let lost = "node 1 (host) with workers 0 to 1 lost: it sent garbage: a request in epoch 2, which has not begun";
    assert_eq!(bench.done(), [lost, "Over"]);
}

#[test]
fn close_gives_nodes_a_grace_period_and_names_workers_that_did_not_leave() {
    let mut bench = Bench::running(3);
    bench.on(Event::Close(1000 * MS));
    bench.send_from(0, Message::Left(String::new()));
    bench.pass(999 * MS);
    assert!(bench.sent_to(1).iter().all(|sent| sent == "Alive"));
    bench.pass(MS);
    assert!(bench.sent_to(1).ends_with(&["Shutdown".into(), "Bye".into()]));
    bench.send_from(1, Message::Left("worker 3 (idle)".into()));
    assert_eq!(bench.engine.stuck(), None);
    bench.pass(2000 * MS);
    let stuck = bench.engine.stuck().unwrap();
    assert_eq!(stuck.len(), 3);
    assert_eq!(stuck[0], "worker 3 (idle)");
    assert!(stuck[2].starts_with("worker 5 (") && stuck[2].ends_with("; node 3 (host) does not answer)"), "{stuck:?}");
    assert_eq!(bench.done().last().unwrap(), "Over");
}

#[test]
fn processes_of_nodes_are_killed_two_seconds_after_their_connections_are_closed() {
    let mut bench = Bench::running(1);
    bench.on(Event::Started(0, Some(7)));
    bench.on(Event::Dropped);
    assert_eq!(bench.sent_to(0), ["Shutdown"]);
    bench.pass(1999 * MS);
    assert!(!bench.done().contains(&"Kill(0)".to_owned()));
    bench.pass(MS);
    assert_eq!(bench.done(), ["Kill(0)"]);
    bench.on(Event::Ended(0, None));
    assert_eq!(bench.done(), ["Over"]);
}

#[test]
fn signals_go_to_all_peers_and_a_shutdown_closes_the_lane() {
    let mut bench = Bench::working();
    bench.on(Event::Signal(Signal::Abort { epoch: 0, cause: "why".into() }));
    bench.on(Event::Signal(Signal::Shutdown));
    assert_eq!([bench.sent_to(0), bench.sent_to(1)], [["Abort", "Shutdown"], ["Abort", "Shutdown"]]);
    assert!(bench.engine.check(|| "lane".into()).is_err());
    assert!(bench.start <= bench.now);
}

#[test]
fn all_peers_are_lost_when_the_reactor_thread_fails() {
    let mut bench = Bench::running(2);
    bench.send_from(0, Message::Left(String::new()));
    bench.done();
    bench.on(Event::Broken("it panicked".into()));
    assert_eq!(bench.done(), ["node 2 (host) with workers 2 to 3 lost: it panicked", "Over"]);
}
