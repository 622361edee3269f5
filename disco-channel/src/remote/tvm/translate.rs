//! Frames of Disco as packets for workers of TVM.

use std::sync::Arc;

use disco_core::wire::tvm;
use disco_core::{Command, Frame, Local, RegisterId, Result, Tensor, Value, WorkerId, WorkerRange};

/// A packet for workers of TVM.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The worker that the packet is for; none for all workers of the lane.
    pub(super) to: Option<WorkerId>,
    pub(super) bytes: Arc<[u8]>,
    /// The reply that the worker owes.
    pub(super) owed: Option<Owed>,
}

/// A reply that a worker owes.
#[derive(Debug)]
pub(super) struct Owed {
    pub(super) seq: u64,
    pub(super) worker: WorkerId,
    /// The command as the worker gets it, without its value.
    pub(super) command: Command,
    pub(super) then: Then,
}

/// The lane's use of a reply.
#[derive(Debug)]
pub(super) enum Then {
    /// Passes it to the session.
    Reply,
    /// Copies the tensor into a host tensor.
    CopyTo(Tensor),
    /// Nothing.
    Ignore,
    /// Counts the worker as started.
    Start,
}

/// The packets of a frame for `workers`. A shutdown and a recovery have none.
///
/// # Errors
/// TVM's workers do not understand the command.
pub(super) fn packets(frame: &Frame, workers: WorkerRange) -> Result<Vec<Outgoing>> {
    let mut packets = Vec::with_capacity(frame.freed().len() + 1);
    for register in frame.freed() {
        packets.push(to_all(&Command::KillReg { register: shifted(*register) })?);
    }
    let seq = frame.seq();
    let ask = |worker: WorkerId, command: Command, then: Then| -> Result<Option<Outgoing>> {
        workers.contains(worker).then(|| ask(seq, worker, command, then)).transpose()
    };
    match frame.command() {
        Command::SyncWorker { worker } => {
            packets.extend(ask(*worker, Command::SyncWorker { worker: *worker }, Then::Reply)?);
        }
        Command::SyncAll => {
            for worker in workers {
                packets.extend(ask(worker, Command::SyncWorker { worker }, Then::Reply)?);
            }
        }
        Command::GetAll { register } => {
            for worker in workers {
                packets.extend(ask(worker, get(*register, worker), Then::Reply)?);
            }
        }
        Command::DebugGet { register, worker } => {
            packets.extend(ask(*worker, get(*register, *worker), Then::Reply)?);
        }
        Command::DebugSet { register, worker, value } => {
            packets.extend(ask(*worker, set(*register, *worker, value.clone()), Then::Reply)?);
        }
        Command::CopyFromWorker0 { register, host: Local(Some(host)) } => {
            packets.extend(ask(WORKER_0, get(*register, WORKER_0), Then::CopyTo(host.clone()))?);
        }
        Command::CopyToWorker0 { register, host: Local(Some(host)) } => {
            packets.extend(ask(WORKER_0, set(*register, WORKER_0, Value::Tensor(host.clone())), Then::Ignore)?);
        }
        Command::KillReg { register } => packets.push(to_all(&Command::KillReg { register: shifted(*register) })?),
        Command::GetGlobalFunc { register, name } => {
            let command = Command::GetGlobalFunc { register: shifted(*register), name: name.clone() };
            packets.push(to_all(&command)?);
        }
        Command::CallPacked { register, function, args } => {
            let args = args.iter().map(|arg| match arg {
                Value::Register(register) => Value::Register(shifted(*register)),
                other => other.clone(),
            });
            let (register, function) = (shifted(*register), shifted(*function));
            packets.push(to_all(&Command::CallPacked { register, function, args: args.collect() })?);
        }
        // A worker of TVM that has failed is lost, so there is nothing to recover.
        Command::Shutdown | Command::Recover { .. } => {}
        other => tvm::check(other)?,
    }
    Ok(packets)
}

/// The first command to a worker, whose reply shows that it runs.
pub(super) fn start(worker: WorkerId) -> Result<Outgoing> {
    ask(0, worker, Command::SyncWorker { worker }, Then::Start)
}

/// Checks that workers of TVM understand a command.
///
/// # Errors
/// They do not; the error names the operation.
pub(super) fn check(command: &Command) -> Result<()> {
    match command {
        Command::GetGlobalFunc { name, .. } if disco_core::is_data_plane_function(name) => {
            Err(disco_core::Error::invalid(format!(
                "function lookup: TVM's workers do not understand `{name}`, which belongs to Disco's data plane; use \
                 the functions that TVM's processes have"
            )))
        }
        Command::SyncAll
        | Command::GetAll { .. }
        | Command::Recover { .. }
        | Command::CopyFromWorker0 { .. }
        | Command::CopyToWorker0 { .. } => Ok(()),
        other => tvm::check(other),
    }
}

/// Checks that workers on nodes of TVM understand a command. A node decodes tensors and can't encode them again.
///
/// # Errors
/// They do not; the error names the operation.
pub(super) fn check_for_nodes(command: &Command) -> Result<()> {
    match command {
        Command::CopyFromWorker0 { .. }
        | Command::CopyToWorker0 { .. }
        | Command::DebugSet { value: Value::Tensor(_), .. } => Err(disco_core::Error::invalid(format!(
            "{}: TVM's nodes do not understand tensors; only TVM's workers that are processes of this machine do",
            command.name()
        ))),
        other => check(other),
    }
}

const WORKER_0: WorkerId = WorkerId::new(0);

/// Workers of TVM don't store a function in register 0.
fn shifted(register: RegisterId) -> RegisterId {
    RegisterId::new(register.index() as u32 + 1)
}

fn get(register: RegisterId, worker: WorkerId) -> Command {
    Command::DebugGet { register: shifted(register), worker }
}

fn set(register: RegisterId, worker: WorkerId, value: Value) -> Command {
    Command::DebugSet { register: shifted(register), worker, value }
}

fn to_all(command: &Command) -> Result<Outgoing> {
    Ok(Outgoing { to: None, bytes: tvm::encode(command)?.into(), owed: None })
}

fn ask(seq: u64, worker: WorkerId, command: Command, then: Then) -> Result<Outgoing> {
    let bytes = tvm::encode(&command)?.into();
    // The lane does not hold the value.
    let command = match command {
        Command::DebugSet { register, worker, .. } => Command::DebugSet { register, worker, value: Value::None },
        other => other,
    };
    Ok(Outgoing { to: Some(worker), bytes, owed: Some(Owed { seq, worker, command, then }) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(frame: &Frame) -> Vec<Command> {
        let packets = packets(frame, WorkerRange::new(0..2)).unwrap();
        packets.iter().map(|packet| Frame::decode(1, &packet.bytes).unwrap().command().clone()).collect()
    }

    #[test]
    fn freed_registers_are_killed_one_by_one_and_ids_are_shifted() {
        let freed = [RegisterId::new(0), RegisterId::new(4)];
        let args = vec![Value::Register(RegisterId::new(7)), Value::Int(7)];
        let call = Command::CallPacked { register: RegisterId::new(2), function: RegisterId::new(0), args };
        let expected = [
            Command::KillReg { register: RegisterId::new(1) },
            Command::KillReg { register: RegisterId::new(5) },
            Command::CallPacked {
                register: RegisterId::new(3),
                function: RegisterId::new(1),
                args: vec![Value::Register(RegisterId::new(8)), Value::Int(7)],
            },
        ];
        assert_eq!(commands(&Frame::new(9, freed, call)), expected);
    }

    #[test]
    fn commands_for_all_workers_become_one_for_each() {
        let sync = |worker| Command::SyncWorker { worker: WorkerId::new(worker) };
        assert_eq!(commands(&Frame::new(1, [], Command::SyncAll)), [sync(0), sync(1)]);
        let register = RegisterId::new(3);
        let get = |worker| Command::DebugGet { register: RegisterId::new(4), worker: WorkerId::new(worker) };
        assert_eq!(commands(&Frame::new(1, [], Command::GetAll { register })), [get(0), get(1)]);
    }

    #[test]
    fn commands_for_workers_of_other_lanes_are_left_out() {
        let worker = WorkerId::new(5);
        assert_eq!(commands(&Frame::new(1, [], Command::SyncWorker { worker })), []);
        assert_eq!(commands(&Frame::new(1, [], Command::Recover { epoch: 2 })), []);
    }

    #[test]
    fn copies_from_and_to_worker_0_become_debug_commands() {
        let (register, host) = (RegisterId::new(1), Tensor::zeros(disco_core::DType::F32, [2]).unwrap());
        let from = Command::CopyFromWorker0 { register, host: Local(Some(host.clone())) };
        let get = Command::DebugGet { register: RegisterId::new(2), worker: WORKER_0 };
        assert_eq!(commands(&Frame::new(1, [], from)), [get]);
        let to = commands(&Frame::new(1, [], Command::CopyToWorker0 { register, host: Local(Some(host)) }));
        assert!(matches!(&to[..], [Command::DebugSet { value: Value::Tensor(_), .. }]), "{to:?}");
    }

    #[test]
    fn what_tvm_can_not_do_is_refused_with_the_operation() {
        let text = |command: &Command| check(command).unwrap_err().to_string();
        let call = |args| Command::CallPacked { register: RegisterId::new(0), function: RegisterId::new(1), args };
        let tensor = Tensor::zeros(disco_core::DType::F32, [2]).unwrap();
        assert_eq!(
            text(&call(vec![Value::Tensor(tensor)])),
            "call: TVM's workers do not understand a tensor as an argument of a call; set a register (`set`), and call \
             with its handle"
        );
        let init = Command::GetGlobalFunc { register: RegisterId::new(0), name: "disco.init_ccl".into() };
        assert_eq!(
            text(&init),
            "function lookup: TVM's workers do not understand `disco.init_ccl`, which belongs to Disco's data plane; use \
             the functions that TVM's processes have"
        );
        let members = disco_core::Members::default().into();
        assert_eq!(
            text(&Command::Resize { epoch: 1, members }),
            "resize: TVM's workers do not understand this command"
        );
        assert!(check(&call(vec![Value::from("text"), Value::Shape([2].into())])).is_ok());
    }
}
