//! Links that are slow or cut, and a proxy that makes them so.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use disco::{
    Builder, DataPlane, Deadlines, LaneSession, Session, SessionExt, SessionKind, Tensor, Value, WorkerId, block_on,
};
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};

use crate::programs::{self, PATIENCE, ask, builder, complaint, end, node, with};

crate::tests!(
    a_link_that_is_cut_in_a_command_is_named,
    a_link_that_is_cut_in_a_frame_is_named,
    a_link_that_is_cut_during_the_start_is_named,
    a_link_that_is_cut_without_a_packet_is_noticed_on_both_ends,
    a_delay_of_200_ms_loses_nothing,
    a_transfer_longer_than_the_reply_deadline_succeeds_while_bytes_move,
);

/// Passes on what goes over connections to an address.
pub(crate) struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    mode: AtomicU8,
    /// What goes to the controller, while it is written down.
    record: Mutex<Option<Arc<Mutex<Vec<u8>>>>>,
    /// Bytes to the node until the link is cut.
    left: AtomicUsize,
    /// Bytes that go each way in a second; 0 without a limit.
    rate: usize,
    /// Bytes that have gone to nodes.
    passed: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
}

/// Passes nothing on any more, and closes nothing.
const DEAF: u8 = 1;

impl Proxy {
    pub(crate) fn start(to: SocketAddr) -> Self {
        Self::delaying(to, Duration::ZERO)
    }

    /// So many bytes a second go each way.
    pub(crate) fn throttled(to: SocketAddr, rate: usize) -> Self {
        Self::new(to, Duration::ZERO, rate)
    }

    /// Everything takes so long, each way.
    fn delaying(to: SocketAddr, delay: Duration) -> Self {
        Self::new(to, delay, 0)
    }

    fn new(to: SocketAddr, delay: Duration, rate: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State { left: usize::MAX.into(), rate, ..State::default() });
        let shared = state.clone();
        thread::spawn(move || {
            for node in listener.incoming() {
                let (node, Ok(controller)) = (node.unwrap(), TcpStream::connect(to)) else { continue };
                [&node, &controller].into_iter().for_each(|stream| stream.set_nodelay(true).unwrap());
                if rate > 0 {
                    // Little waits in the system, where no end sees it move.
                    [&node, &controller].into_iter().for_each(|it| set_socket_recv_buffer_size(it, 64 << 10).unwrap());
                    [&node, &controller].into_iter().for_each(|it| set_socket_send_buffer_size(it, 64 << 10).unwrap());
                }
                shared.streams.lock().unwrap().extend([&node, &controller].map(|stream| stream.try_clone().unwrap()));
                let back = [&node, &controller].map(|stream| stream.try_clone().unwrap());
                let (up, down) = (shared.clone(), shared.clone());
                thread::spawn(move || pump(node, controller, delay, &up, true));
                let [node, controller] = back;
                thread::spawn(move || pump(controller, node, delay, &down, false));
            }
        });
        Self { address, state }
    }

    pub(crate) fn recording(self, record: Arc<Mutex<Vec<u8>>>) -> Self {
        *self.state.record.lock().unwrap() = Some(record);
        self
    }

    /// Cuts the link after so many bytes more for the node.
    fn cut_after(&self, bytes: usize) {
        self.state.left.store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Bytes that have gone to nodes.
    pub(crate) fn passed(&self) -> usize {
        self.state.passed.load(Ordering::SeqCst)
    }

    pub(crate) fn cut(&self) {
        self.state.cut();
    }

    pub(crate) fn go_deaf(&self) {
        self.state.mode.store(DEAF, Ordering::SeqCst);
    }
}

impl State {
    fn cut(&self) {
        for stream in self.streams.lock().unwrap().drain(..) {
            _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Copies one direction, until it is closed.
fn pump(mut from: TcpStream, mut to: TcpStream, delay: Duration, state: &Arc<State>, is_up: bool) {
    let (tell, told) = mpsc::sync_channel::<(Instant, Vec<u8>)>(if state.rate > 0 { 1 } else { 1 << 16 });
    let keeper = state.clone();
    let writer = thread::spawn(move || {
        for (due, mut bytes) in told {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            while keeper.mode.load(Ordering::SeqCst) == DEAF {
                thread::sleep(Duration::from_millis(10));
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
            if keeper.rate > 0 {
                thread::sleep(Duration::from_secs_f64(bytes.len() as f64 / keeper.rate as f64));
            }
            if !is_up && left < usize::MAX && left == bytes.len() {
                return keeper.cut();
            }
        }
        _ = to.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let bytes = buffer[..count].to_vec();
        if let Some(record) = state.record.lock().unwrap().as_ref().filter(|_| is_up) {
            record.lock().unwrap().extend_from_slice(&bytes);
        }
        if tell.send((Instant::now() + delay, bytes)).is_err() {
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

fn a_link_that_is_cut_in_a_command_is_named() {
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let (session, proxy, node) = behind(builder(2, 2).node_workers(kind), Proxy::start);
        let pid = ask(&session, "tests.pid", 3);
        block_on(async {
            session.init_ccl("by-store", &[]).await.unwrap();
            // Worker 3 is in a function, all others in a collective.
            session.call(&session.function("tests.barriers").await.unwrap(), (1, 3, 1000.0)).await.unwrap();
            proxy.cut();
            let error = session.sync_all().await.unwrap_err().to_string();
            assert!(error.starts_with("node 1 (") && error.contains(") with workers 2 to 3 lost: "), "{error}");
            assert!(error.ends_with("its connection was closed"), "{error}");
            let later = session.sync_all().await.unwrap_err().to_string();
            assert_eq!(later, error);
            session.shutdown().await.unwrap();
        });
        let told = complaint(node);
        let last = told.lines().next_back().unwrap();
        assert!(last.starts_with("disco: the controller lost: it closed the connection"), "{told}");
        programs::wait_for_end_of(pid);
    }
}

fn a_link_that_is_cut_in_a_frame_is_named() {
    let (session, proxy, node) = behind(builder(2, 1), Proxy::start);
    block_on(async {
        let length = session.function("tests.length").await.unwrap();
        session.sync_all().await.unwrap();
        proxy.cut_after(300_000);
        // Refused already, perhaps.
        _ = session.call(&length, ("x".repeat(1 << 20),)).await;
        let error = session.sync_all().await.unwrap_err().to_string();
        assert!(error.starts_with("node 1 (") && error.ends_with("its connection was closed"), "{error}");
        session.shutdown().await.unwrap();
    });
    let told = complaint(node);
    assert!(told.ends_with("disco: the controller lost: it closed the connection\n"), "{told}");
}

fn a_link_that_is_cut_during_the_start_is_named() {
    // In the greeting: the node tries again.
    let (session, (proxy, child)) = with(builder(2, 1), |address| {
        let proxy = Proxy::start(address);
        proxy.cut_after(20);
        let node = node(proxy.address()).spawn().unwrap();
        thread::sleep(Duration::from_millis(300));
        proxy.cut_after(usize::MAX);
        (proxy, node)
    });
    block_on(session.unwrap().shutdown()).unwrap();
    let output = end(child);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("more: it closed the connection\n") && output.status.success(), "{told}");
    drop(proxy);
    // In what it is assigned: greeting and verdict have 96 bytes.
    let (session, (_, node)) = with(builder(2, 1), |address| {
        let proxy = Proxy::start(address);
        proxy.cut_after(120);
        let node = node(proxy.address()).env("DISCO_JOIN_SECONDS", "1").spawn().unwrap();
        (proxy, node)
    });
    let error = session.unwrap_err().to_string();
    assert!(
        error.starts_with("node 1 (") && error.ends_with(") with worker 1 lost: its connection was closed"),
        "{error}"
    );
    // It tries again.
    let told = complaint(node);
    assert!(told.contains("more: it closed the connection\n"), "{told}");
    assert!(told.lines().next_back().unwrap().starts_with("disco: joining the controller at "), "{told}");
}

fn a_link_that_is_cut_without_a_packet_is_noticed_on_both_ends() {
    let silence = Duration::from_millis(600);
    for kind in [SessionKind::Processes, SessionKind::Threads] {
        let (session, proxy, node) = behind(builder(2, 2).node_workers(kind).silence(silence), Proxy::start);
        let pid = ask(&session, "tests.pid", 3);
        block_on(async {
            session.init_ccl("by-store", &[]).await.unwrap();
            session.call(&session.function("tests.barriers").await.unwrap(), (1, 3, 1000.0)).await.unwrap();
            proxy.go_deaf();
            let error = session.sync_all().await.unwrap_err().to_string();
            assert!(error.starts_with("node 1 (") && error.ends_with("it has said nothing for 600ms"), "{error}");
            session.shutdown().await.unwrap();
        });
        let told = complaint(node);
        let last = told.lines().next_back().unwrap();
        assert!(last.starts_with("disco: the controller lost: it has said nothing for 600ms"), "{told}");
        programs::wait_for_end_of(pid);
    }
}

fn a_delay_of_200_ms_loses_nothing() {
    let delay = Duration::from_millis(200);
    let session = builder(2, 2).silence(Duration::from_secs(2));
    let (session, _proxy, node) = behind(session, |address| Proxy::delaying(address, delay));
    block_on(async {
        session.init_ccl("by-store", &[]).await.unwrap();
        let start = Instant::now();
        let length = session.function("tests.length").await.unwrap();
        let handles: Vec<_> = {
            let mut handles = Vec::new();
            for size in 0..3000 {
                handles.push(session.call(&length, ("x".repeat(size % 100),)).await.unwrap());
            }
            handles
        };
        for index in [0, 1500, 2999] {
            let length = session.get(&handles[index], WorkerId::new(3)).await.unwrap();
            assert_eq!(length, Value::Int(index as i64 % 100));
        }
        session.call(&session.function("tests.barriers").await.unwrap(), (2, 9, 0.0)).await.unwrap();
        session.sync_all().await.unwrap();
        assert!(start.elapsed() > 3 * delay && start.elapsed() < PATIENCE);
        session.shutdown().await.unwrap();
    });
    assert!(end(node).status.success());
}

fn a_transfer_longer_than_the_reply_deadline_succeeds_while_bytes_move() {
    // 24 MiB take 3 s each way.
    let limits = Deadlines::default().with_reply(Duration::from_secs(1)).with_stall(Duration::from_secs(1));
    let tensor = Tensor::from_vec((0..3 << 20).map(f64::from).collect::<Vec<_>>(), [3 << 20]).unwrap();
    let builder = builder(2, 1).deadlines(limits);
    let (session, proxy, node) = behind(builder, |address| Proxy::throttled(address, 8 << 20));
    block_on(async {
        let worker = WorkerId::new(1);
        let register = session.call_named("tests.length", ("four",)).await.unwrap();
        session.set(&register, worker, tensor.clone().into()).await.unwrap();
        let back: Tensor = session.get_as(&register, worker).await.unwrap();
        assert!(back.to_vec::<f64>().unwrap() == tensor.to_vec::<f64>().unwrap());
        // A link that moves nothing is another matter.
        proxy.go_deaf();
        let late = session.get(&register, worker).await.unwrap_err().to_string();
        assert!(late.starts_with("get: no end after 1s: worker 1 does not answer: finished command "), "{late}");
        // The session is lost with the link.
        proxy.cut();
        session.shutdown().await.unwrap_err();
    });
    complaint(node);
}
