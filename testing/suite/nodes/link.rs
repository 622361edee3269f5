//! Links that are slow, silent or cut, and the proxy that makes them so.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use disco::{Builder, Deadlines, LaneSession, SessionKind, Tensor, WorkerId, block_on};
use disco_conformance::waiting;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use super::first_line;
use super::programs::{self, ask, builder, complaint, end, node, read_until, with};

super::tests!(
    a_link_cut_in_the_greeting_is_retried_and_after_the_verdict_fails_the_start,
    a_silent_link_is_a_loss_on_both_ends_after_the_silence_limit,
    a_transfer_longer_than_the_reply_deadline_succeeds_while_bytes_move,
);

/// A TCP proxy between nodes and a controller.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<LinkState>,
}

/// State that all connections of a proxy share.
#[derive(Default)]
struct LinkState {
    mode: AtomicU8,
    /// Bytes sent to the controller, if they are recorded.
    record: Mutex<Option<Arc<Mutex<Vec<u8>>>>>,
    /// Number of bytes that still go to nodes before the link is cut.
    left: AtomicUsize,
    /// Rate of each direction, in bytes per second; 0 is unlimited.
    rate: AtomicUsize,
    /// Number of bytes sent to nodes.
    passed: AtomicUsize,
    /// The fate of the next bytes of one direction: `true` is the direction to the controller.
    attack: Mutex<Option<(bool, Attack)>>,
    streams: Mutex<Vec<TcpStream>>,
}

/// A change of the bytes that are read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attack {
    /// Inverts a bit of this byte, counted from the end.
    Flip(usize),
    /// Leaves the bytes out.
    Drop,
    /// Sends the bytes twice.
    Repeat,
    /// Sends the bytes after the next ones.
    Reorder,
    /// Sends the bytes back to their sender, too.
    Reflect,
    /// Increases the length of the first packet or encrypted record to more than will come.
    Lengthen,
}

/// A mode: connections stay open, but nothing is forwarded.
const NOT_FORWARDING: u8 = 1;

impl Proxy {
    pub(crate) fn start(to: SocketAddr) -> Self {
        Self::throttled(to, 0)
    }

    /// Forwards at most `rate` bytes per second in each direction; 0 is unlimited.
    pub(crate) fn throttled(to: SocketAddr, rate: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(LinkState { left: usize::MAX.into(), rate: rate.into(), ..LinkState::default() });
        let shared = state.clone();
        thread::spawn(move || {
            for node in listener.incoming() {
                let (node, Ok(controller)) = (node.unwrap(), TcpStream::connect(to)) else { continue };
                [&node, &controller].into_iter().for_each(|stream| stream.set_nodelay(true).unwrap());
                if rate > 0 {
                    // Small buffers: bytes in the kernel's buffers would count as sent.
                    [&node, &controller].into_iter().for_each(|it| set_socket_recv_buffer_size(it, 64 << 10).unwrap());
                    [&node, &controller].into_iter().for_each(|it| set_socket_send_buffer_size(it, 64 << 10).unwrap());
                }
                shared.streams.lock().unwrap().extend([&node, &controller].map(|stream| stream.try_clone().unwrap()));
                let back = [&node, &controller].map(|stream| stream.try_clone().unwrap());
                let (up, down) = (shared.clone(), shared.clone());
                thread::spawn(move || pump(node, controller, &up, true));
                let [node, controller] = back;
                thread::spawn(move || pump(controller, node, &down, false));
            }
        });
        Self { address, state }
    }

    pub(crate) fn recording(self, record: Arc<Mutex<Vec<u8>>>) -> Self {
        *self.state.record.lock().unwrap() = Some(record);
        self
    }

    /// Cuts the link after `bytes` more bytes to the node.
    fn cut_after(&self, bytes: usize) {
        self.state.left.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Attacks the next bytes to the controller, or to the node.
    pub(crate) fn attack(&self, is_up: bool, attack: Attack) {
        *self.state.attack.lock().unwrap() = Some((is_up, attack));
    }

    /// Number of bytes sent to nodes.
    pub(crate) fn passed(&self) -> usize {
        self.state.passed.load(Ordering::SeqCst)
    }

    /// Changes the rate; 0 is unlimited.
    pub(crate) fn set_rate(&self, rate: usize) {
        self.state.rate.store(rate, Ordering::SeqCst);
    }

    pub(crate) fn cut(&self) {
        self.state.cut();
    }

    pub(crate) fn stop_forwarding(&self) {
        self.state.mode.store(NOT_FORWARDING, Ordering::SeqCst);
    }
}

impl LinkState {
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards one direction until it is closed. `is_up` is the direction to the controller.
fn pump(mut from: TcpStream, mut to: TcpStream, state: &Arc<LinkState>, is_up: bool) {
    let (tell, told) = mpsc::sync_channel::<Vec<u8>>(if state.rate.load(Ordering::SeqCst) > 0 { 1 } else { 1 << 16 });
    let keeper = state.clone();
    let writer = thread::spawn(move || {
        for mut bytes in told {
            if keeper.mode.load(Ordering::SeqCst) == NOT_FORWARDING {
                waiting::hang();
            }
            let left = keeper.left.load(Ordering::SeqCst);
            if !is_up && left < usize::MAX {
                bytes.truncate(left);
                keeper.left.store(left - bytes.len(), Ordering::SeqCst);
            }
            if to.write_all(&bytes).is_err() {
                return;
            }
            if !is_up {
                keeper.passed.fetch_add(bytes.len(), Ordering::SeqCst);
            }
            let rate = keeper.rate.load(Ordering::SeqCst);
            if rate > 0 {
                // The rate of the link.
                thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / rate as f64));
            }
            if !is_up && left < usize::MAX && left == bytes.len() {
                return keeper.cut();
            }
        }
        _ = to.shutdown(Shutdown::Write);
    });
    let (mut buffer, mut held) = (vec![0; 64 << 10], None);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut bytes = buffer[..count].to_vec();
        match state.attack.lock().unwrap().take_if(|(direction, _)| *direction == is_up).map(|(_, attack)| attack) {
            Some(Attack::Flip(at)) => bytes[count - 1 - at.min(count - 1)] ^= 1,
            Some(Attack::Drop) => continue,
            Some(Attack::Repeat) => bytes.extend_from_within(..),
            Some(Attack::Reorder) => {
                held = Some(bytes);
                continue;
            }
            Some(Attack::Lengthen) => bytes[..2].fill(0xf0),
            Some(Attack::Reflect) => from.write_all(&bytes).unwrap(),
            None => bytes.extend(held.take().into_iter().flatten()),
        }
        if let Some(record) = state.record.lock().unwrap().as_ref().filter(|_| is_up) {
            record.lock().unwrap().extend_from_slice(&bytes);
        }
        if tell.send(bytes).is_err() {
            break;
        }
    }
    drop(tell);
    _ = writer.join();
}

/// A session with one node behind a proxy.
pub(crate) fn behind(builder: Builder, proxy: impl FnOnce(SocketAddr) -> Proxy + Send) -> (LaneSession, Proxy, Child) {
    let (session, (proxy, node)) = with(builder, |address| {
        let proxy = proxy(address);
        let node = node(proxy.address()).spawn().unwrap();
        (proxy, node)
    });
    (session.unwrap(), proxy, node)
}

fn a_link_cut_in_the_greeting_is_retried_and_after_the_verdict_fails_the_start() {
    // Cut in the greeting: the node tries again.
    let (session, (proxy, child)) = with(builder(2, 1), |address| {
        let proxy = Proxy::start(address);
        proxy.cut_after(20);
        let mut node = node(proxy.address()).spawn().unwrap();
        read_until(&mut node, "more: it closed the connection\n");
        proxy.cut_after(usize::MAX);
        (proxy, node)
    });
    block_on(session.unwrap().shutdown()).unwrap();
    let output = end(child);
    assert!(output.status.success(), "{output:?}");
    drop(proxy);
    // Cut in the assignment, which follows 112 bytes of greeting and verdict.
    let (session, (_, node)) = with(builder(2, 1), |address| {
        let proxy = Proxy::start(address);
        proxy.cut_after(130);
        let node = node(proxy.address()).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap();
        (proxy, node)
    });
    let error = session.unwrap_err().to_string();
    assert!(
        error.starts_with("node 1 (") && error.ends_with(") with worker 1 lost: its connection was closed"),
        "{error}"
    );
    // The node tries again.
    let told = complaint(node);
    assert!(told.contains("more: it closed the connection\n"), "{told}");
    assert!(told.lines().next_back().unwrap().starts_with("disco: joining the controller at "), "{told}");
}

fn a_silent_link_is_a_loss_on_both_ends_after_the_silence_limit() {
    let silence = Duration::from_millis(600);
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let (session, proxy, node) =
            behind(builder(2, 2).node_options(|nodes| nodes.workers = kind).silence(silence), Proxy::start);
        let pid = ask(&session, "tests.pid", 3);
        block_on(async {
            session.init_ccl("tcp", &[]).await.unwrap();
            session.call("tests.barriers", (1, 3)).await.unwrap();
            proxy.stop_forwarding();
            let error = first_line(&session.sync_all().await.unwrap_err());
            assert!(error.starts_with("node 1 (") && error.ends_with("no message came from it for 600ms"), "{error}");
            session.shutdown().await.unwrap();
        });
        let told = complaint(node);
        let last = told.lines().next_back().unwrap();
        assert!(last.starts_with("disco: the controller lost: no message came from it for 600ms"), "{told}");
        programs::wait_for_end_of(pid);
    }
}

fn a_transfer_longer_than_the_reply_deadline_succeeds_while_bytes_move() {
    // A transfer of 16 MiB takes 2 s in each direction.
    let limits = Deadlines::default().with_reply(Duration::from_secs(1)).with_stall(Duration::from_secs(1));
    let tensor = Tensor::from_vec((0..2 << 20).map(f64::from).collect::<Vec<_>>(), [2 << 20]).unwrap();
    let builder = builder(2, 1).deadlines(limits);
    let (session, proxy, node) = behind(builder, |address| Proxy::throttled(address, 8 << 20));
    block_on(async {
        let worker = WorkerId::new(1);
        let register = session.call("tests.length", ("four",)).await.unwrap();
        session.set(&register, worker, tensor.clone().into()).await.unwrap();
        let back: Tensor = session.get(&register, worker).await.unwrap();
        assert!(back.to_vec::<f64>().unwrap() == tensor.to_vec::<f64>().unwrap());
        // Without moving bytes, the deadline applies.
        proxy.stop_forwarding();
        let late = session.value(&register, worker).await.unwrap_err().to_string();
        assert!(late.starts_with("get: no end after 1s: worker 1 does not answer: finished command "), "{late}");
        // The loss of the link is the loss of the session, which may not know of it yet.
        proxy.cut();
        _ = session.shutdown().await;
    });
    complaint(node);
}
