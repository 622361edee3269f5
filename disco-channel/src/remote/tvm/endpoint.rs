//! The worker's end of a connection to a controller of TVM.

use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;

use disco_core::channel::Reply;
use disco_core::error::{ErrorKind, Failure, LossCause, LostPeer};
use disco_core::wire::tvm;
use disco_core::{Command, Error, Frame, Link, Result, WorkerId};

use super::packets::{Packets, packet_limit};

/// The [`Endpoint`](disco_core::Endpoint) of a worker in a session of TVM, over a pair of streams.
///
/// The worker's own id is TVM's id minus the number of TVM's workers before it, so that the workers of this program are
/// a world of their own.
pub struct Endpoint {
    /// The worker's id in TVM's session.
    theirs: WorkerId,
    /// TVM's id of worker 0 of this program.
    first: u32,
    input: Box<dyn Read + Send>,
    output: Box<dyn Write + Send>,
    packets: Packets,
    link: Arc<Link>,
    /// Number of the last command.
    seq: u64,
    /// The frame that the worker executes.
    frame: Option<Frame>,
    /// Whether the worker recovers after the controller was told of a failure.
    recovers: bool,
    /// Whether the next epoch is due.
    is_recovery_due: bool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("theirs", &self.theirs).field("seq", &self.seq).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// The end of TVM's worker `theirs`, which gets commands from `input` and replies over `output`. `first` is TVM's id
    /// of worker 0 of this program. Values of at most `value_limit` bytes are read.
    pub fn new(
        (theirs, first): (WorkerId, WorkerId),
        input: impl Read + Send + 'static,
        output: impl Write + Send + 'static,
        link: Arc<Link>,
        value_limit: usize,
    ) -> Self {
        Self {
            theirs,
            first: first.index() as u32,
            input: Box::new(input),
            output: Box::new(output),
            packets: Packets::new(packet_limit(value_limit)),
            link,
            seq: 0,
            frame: None,
            recovers: false,
            is_recovery_due: false,
        }
    }

    /// Makes the worker recover after a reply has told the controller of a failure.
    #[must_use]
    pub fn recovering(self) -> Self {
        Self { recovers: true, ..self }
    }

    fn read(&mut self) -> Result<Option<Vec<u8>>> {
        self.packets.read(&mut self.input).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => self.garbage(&error.to_string()),
            _ => Error::peer_lost(LostPeer::Controller, LossCause::ConnectionFailed(error.to_string())),
        })
    }

    /// Reads until the controller closes the connection. It still frees registers.
    fn drain(&mut self) {
        while let Ok(Some(_)) = self.read() {}
    }

    fn garbage(&self, why: &str) -> Error {
        Error::protocol(format!("{}: command {} of TVM's controller can't be read: {why}", self.theirs, self.seq))
    }
}

impl disco_core::Endpoint for Endpoint {
    /// After ShutDown, reads until the end of the connection.
    fn recv(&mut self) -> Result<&Frame> {
        self.frame = None;
        if std::mem::take(&mut self.is_recovery_due) {
            let epoch = self.link.epoch() + 1;
            return Ok(self.frame.insert(Frame::new(self.seq, [], Command::Recover { epoch })));
        }
        let Some(packet) = self.read()? else { return Err(Error::Closed(self.theirs.to_string())) };
        self.seq += 1;
        let frame = Frame::decode(self.seq, &packet).map_err(|error| self.garbage(&error.to_string()))?;
        if matches!(frame.command(), Command::Shutdown) {
            self.drain();
            return Err(Error::Closed(self.theirs.to_string()));
        }
        Ok(self.frame.insert(with_own_ids(frame, self.first)))
    }

    fn reply(&mut self, seq: u64, reply: Reply) -> Result<()> {
        let Some(frame) = &self.frame else { return Err(Error::state("a reply before the first command")) };
        let packet = encode_reply(frame.command(), self.theirs, seq, &reply)?;
        self.is_recovery_due = self.recovers && reply.is_err();
        let sent = self.output.write_all(&packet).and_then(|()| self.output.flush());
        sent.map_err(|error| Error::peer_lost(LostPeer::Controller, LossCause::ConnectionFailed(error.to_string())))
    }

    fn link(&self) -> Arc<Link> {
        self.link.clone()
    }
}

/// The frame with the ids of this program's workers, of which worker 0 has TVM's id `first`. A command for one of TVM's
/// own workers is for no worker here.
pub(super) fn with_own_ids(frame: Frame, first: u32) -> Frame {
    if first == 0 {
        return frame;
    }
    let own = |worker: WorkerId| WorkerId::new((worker.index() as u32).checked_sub(first).unwrap_or(u32::MAX));
    let command = match frame.command().clone() {
        Command::SyncWorker { worker } => Command::SyncWorker { worker: own(worker) },
        Command::DebugGet { register, worker } => Command::DebugGet { register, worker: own(worker) },
        Command::DebugSet { register, worker, value } => Command::DebugSet { register, worker: own(worker), value },
        // These are for TVM's worker 0.
        Command::CopyFromWorker0 { .. } | Command::CopyToWorker0 { .. } => return frame.as_noop(),
        _ => return frame,
    };
    Frame::new(frame.seq(), frame.freed().to_vec(), command)
}

/// The packet of a worker's reply to command `seq`. `theirs` is the worker's id in TVM's session. A reply that can't be
/// encoded becomes a failure, which is printed, too.
///
/// # Errors
/// The failure can't be encoded.
pub(super) fn encode_reply(command: &Command, theirs: WorkerId, seq: u64, reply: &Reply) -> Result<Vec<u8>> {
    tvm::encode_tvm_reply(command, theirs, reply).or_else(|error| {
        let failure = Failure {
            worker: theirs,
            command: seq,
            operation: command.name().to_owned(),
            register: None,
            message: error.to_string(),
            causes: Vec::new(),
            aborted: false,
            kind: ErrorKind::of(&error),
            user: None,
        };
        report(&failure);
        tvm::encode_tvm_reply(command, theirs, &Err(Arc::new(failure)))
    })
}

/// Prints a failure on standard error: TVM's protocol has no message for it.
pub(super) fn report(failure: &Failure) {
    crate::remote::terminal::print("disco", true, failure.to_string().as_bytes());
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, PipeReader, PipeWriter};
    use std::thread;

    use disco_core::wire::Packet;
    use disco_core::{Endpoint as _, RegisterId, Value, WorkerConfig, World, register_function, worker};

    use super::*;

    fn one_more(_: &mut worker::WorkerContext, number: i64) -> Result<i64> {
        Ok(number + 1)
    }

    fn fail(_: &mut worker::WorkerContext) -> Result<()> {
        Err(Error::invalid("no luck"))
    }

    register_function!("tvm.endpoint.one_more", one_more);
    register_function!("tvm.endpoint.fail", fail);

    /// TVM's end of the connection to its worker 2, which is worker 1 of this program.
    struct Controller {
        to: PipeWriter,
        from: PipeReader,
        packets: Packets,
        worker: thread::JoinHandle<Result<()>>,
    }

    impl Controller {
        fn start() -> Self {
            let ((theirs, to), (from, output)) = (std::io::pipe().unwrap(), std::io::pipe().unwrap());
            let ids = (WorkerId::new(2), WorkerId::new(1));
            let endpoint = Endpoint::new(ids, theirs, output, Arc::new(Link::bare(Arc::default())), 1 << 20);
            let config = WorkerConfig::new(World::new(2, 1).unwrap());
            let worker = thread::spawn(move || worker::run(WorkerId::new(1), config, endpoint.recovering()));
            Self { to, from, packets: Packets::new(1 << 20), worker }
        }

        fn send(&mut self, command: Command) {
            self.to.write_all(&tvm::encode(&command).unwrap()).unwrap();
        }

        fn lookup(&mut self, register: u32, name: &str) {
            self.send(Command::GetGlobalFunc { register: RegisterId::new(register), name: name.into() });
        }

        fn call(&mut self, register: u32, function: u32, args: Vec<Value>) {
            let (register, function) = (RegisterId::new(register), RegisterId::new(function));
            self.send(Command::CallPacked { register, function, args });
        }

        fn get(&mut self, register: u32) -> Vec<Value> {
            self.send(Command::DebugGet { register: RegisterId::new(register), worker: WorkerId::new(2) });
            self.reply()
        }

        fn reply(&mut self) -> Vec<Value> {
            let packet = self.packets.read(&mut self.from).unwrap().unwrap();
            Packet::split(&packet).unwrap().0.rest().unwrap()
        }

        fn end(mut self) {
            self.send(Command::Shutdown);
            // More bytes than a pipe holds, so that all are sent only if the worker reads.
            (0..5000).for_each(|_| self.send(Command::KillReg { register: RegisterId::new(1) }));
            drop(self.to);
            self.worker.join().unwrap().unwrap();
        }
    }

    #[test]
    fn a_worker_answers_with_tvm_s_id_and_reads_until_the_end_after_a_shutdown() {
        let mut controller = Controller::start();
        controller.lookup(1, "tvm.endpoint.one_more");
        controller.call(2, 1, vec![Value::Int(41)]);
        // For TVM's own worker, and for another one of this program.
        controller.send(Command::SyncWorker { worker: WorkerId::new(0) });
        controller.send(Command::SyncWorker { worker: WorkerId::new(1) });
        controller.send(Command::SyncWorker { worker: WorkerId::new(2) });
        assert_eq!(controller.reply(), [Value::Int(4), Value::Int(2)]);
        assert_eq!(controller.get(2), [Value::Int(7), Value::Int(42)]);
        controller.end();
    }

    #[test]
    fn a_failure_is_one_reply_that_tvm_refuses_and_the_worker_recovers() {
        let mut controller = Controller::start();
        controller.lookup(1, "tvm.endpoint.fail");
        controller.lookup(2, "tvm.endpoint.one_more");
        controller.call(3, 1, vec![]);
        let reply = controller.get(3);
        assert_eq!(reply[0], Value::Int(67));
        // TVM reads replies of one or two arguments.
        assert!(reply.len() > 2 && reply.contains(&Value::from("no luck")), "{reply:?}");
        controller.call(3, 2, vec![Value::Int(1)]);
        assert_eq!(controller.get(3), [Value::Int(7), Value::Int(2)]);
        controller.end();
    }

    #[test]
    fn an_unknown_function_does_not_end_the_worker() {
        let mut controller = Controller::start();
        controller.lookup(1, "no.such.function");
        let reply = controller.get(1);
        assert!(format!("{reply:?}").contains("no.such.function"), "{reply:?}");
        controller.lookup(1, "tvm.endpoint.one_more");
        controller.call(2, 1, vec![Value::Int(1)]);
        assert_eq!(controller.get(2), [Value::Int(7), Value::Int(2)]);
        controller.end();
    }

    #[test]
    fn garbage_ends_the_worker_with_the_command_s_number() {
        let mut bytes = tvm::encode(&Command::KillReg { register: RegisterId::new(1) }).unwrap();
        bytes.extend(u64::MAX.to_le_bytes());
        let ids = (WorkerId::new(3), WorkerId::new(0));
        let link = Arc::new(Link::bare(Arc::default()));
        let mut endpoint = Endpoint::new(ids, Cursor::new(bytes), Vec::new(), link, 1 << 10);
        endpoint.recv().unwrap();
        let error = endpoint.recv().unwrap_err().to_string();
        assert!(error.contains("worker 3: command 1 of TVM's controller can't be read: a packet of"), "{error}");
    }
}
