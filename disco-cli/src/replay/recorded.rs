//! The content of a command log that a replay needs before its first command.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use disco_trace::command_log::{Call, Command, CommandKind, Described, End, Head, Line, Reader};

/// The function that makes the communicators of a session.
pub(super) const INIT_CCL: &str = "disco.init_ccl";
/// The function that makes tensors on all workers.
const EMPTY: &str = "disco.empty";
/// Stands for the name of a function that the log does not have.
const UNNAMED: &str = "(unnamed)";

/// A log, with calls only of its commands.
#[derive(Default)]
pub(super) struct Recorded {
    pub(super) head: Head,
    /// The names of functions, which calls number.
    pub(super) functions: Vec<String>,
    /// The calls of stand-ins, in order.
    pub(super) calls: Vec<CallOf>,
    /// For each worker its recorded calls, by the numbers of the commands.
    pub(super) workers: Vec<HashMap<u64, Call>>,
    /// The results of calls that the program has fetched or copied, by the numbers of the calls.
    pub(super) results: HashMap<u64, Described>,
    /// The backend and the devices of the first `init_ccl`.
    pub(super) data_plane: Option<(String, Vec<i64>)>,
    /// Whether the replay has a data plane, if the log has one.
    has_data_plane: bool,
    /// The last line; `None` if the log ends early.
    pub(super) end: Option<End>,
    /// The failure that has ended the program.
    pub(super) failure: Option<Failed>,
    /// The first and the last number of commands between a failure and the recovery from it, in order. They are not
    /// replayed.
    left_out: Vec<(u64, u64)>,
}

/// A call of a stand-in.
#[derive(Clone, Copy)]
pub(super) struct CallOf {
    pub(super) number: u64,
    pub(super) function: u32,
}

/// The failure that ended the recorded program.
pub(super) struct Failed {
    /// The command in which a worker failed; `None` for other failures.
    pub(super) command: Option<u64>,
    pub(super) function: Option<String>,
    pub(super) why: String,
}

impl Recorded {
    /// Reads a log to its end.
    pub(super) fn read(path: &Path, has_data_plane: bool) -> anyhow::Result<Self> {
        let reader = Reader::open(path)?;
        let mut this = Self { head: reader.head().clone(), has_data_plane, ..Self::default() };
        this.workers.resize_with(this.head.workers, HashMap::new);
        let mut registers = Registers::default();
        let (mut worker, mut failed, mut recoveries) = (0, BTreeSet::new(), Vec::new());
        for line in reader {
            match line? {
                Line::Command(command) => {
                    match command.kind {
                        CommandKind::Recover => recoveries.push(command.number),
                        CommandKind::Resize => anyhow::bail!(
                            "{}: command {} has changed the number of workers (`Session::resize`), which can't be replayed",
                            path.display(),
                            command.number
                        ),
                        _ => {}
                    }
                    this.add(command, &mut registers);
                }
                Line::Freed(freed) => registers.free(&freed),
                Line::Wait(wait) => {
                    let result = wait.replies.into_iter().next().filter(|reply| *reply != Described::None);
                    if let Some((call, result)) = registers.fetched.remove(&wait.number).zip(result) {
                        this.results.insert(call, result);
                    }
                }
                Line::Worker(of) => worker = of.worker as usize,
                Line::Call(call) => {
                    if call.failed {
                        failed.insert(call.number);
                    }
                    if let Some(calls) = this.workers.get_mut(worker) {
                        add_call(calls, call);
                    }
                }
                Line::End(end) => this.end = Some(end),
                _ => {}
            }
        }
        this.leave_out(&failed, &recoveries);
        Ok(this)
    }

    fn add(&mut self, command: Command, registers: &mut Registers) {
        registers.free(&command.freed);
        let Command { number, kind, register, .. } = command;
        match (kind, register) {
            (CommandKind::Call, Some(register)) => {
                let name = command.function.as_deref().unwrap_or(UNNAMED);
                if name == INIT_CCL && self.data_plane.is_none() {
                    self.data_plane = data_plane(&command.args);
                }
                if self.is_real(name) {
                    registers.defined.remove(&register);
                    return;
                }
                let function = *registers.functions.entry(name.to_owned()).or_insert_with(|| {
                    self.functions.push(name.to_owned());
                    self.functions.len() as u32 - 1
                });
                self.calls.push(CallOf { number, function });
                registers.defined.insert(register, number);
            }
            (CommandKind::Get | CommandKind::GetAll, Some(register)) => {
                registers.defined.get(&register).map(|call| registers.fetched.insert(number, *call));
            }
            (CommandKind::CopyFromWorker0 | CommandKind::CopyToWorker0, Some(register)) => {
                let call = registers.defined.get(&register).zip(command.args.into_iter().next());
                call.map(|(call, tensor)| self.results.entry(*call).or_insert(tensor));
            }
            (CommandKind::Function, Some(register)) => _ = registers.defined.remove(&register),
            _ => {}
        }
    }

    /// Leaves out the commands after each failure, up to the recovery from it.
    fn leave_out(&mut self, failed: &BTreeSet<u64>, recoveries: &[u64]) {
        let mut from = 0;
        for recovery in recoveries {
            if let Some(first) = failed.range(from..*recovery).next() {
                self.left_out.push((first + 1, *recovery));
            }
            from = *recovery;
        }
        let last = failed.range(from..).next().copied();
        self.left_out.extend(last.map(|first| (first + 1, u64::MAX)));
        let failure = self.end.as_ref().and_then(|end| end.failure.clone());
        let why = failure.or(last.map(|_| "a worker has failed".to_owned()));
        self.failure = why.map(|why| {
            let call = last.and_then(|number| self.calls.iter().find(|call| call.number == number));
            let function = call.map(|call| self.functions[call.function as usize].clone());
            Failed { command: last, function, why }
        });
    }

    /// Whether a replay calls the function itself instead of a stand-in.
    pub(super) fn is_real(&self, name: &str) -> bool {
        name == EMPTY || (name == INIT_CCL && self.has_data_plane)
    }

    /// Whether the command is not replayed.
    pub(super) fn is_left_out(&self, number: u64) -> bool {
        let index = self.left_out.partition_point(|(_, last)| *last < number);
        self.left_out.get(index).is_some_and(|(first, _)| *first <= number)
    }

    /// The calls of stand-ins that are replayed.
    pub(super) fn replayed(&self) -> impl Iterator<Item = CallOf> {
        self.calls.iter().copied().filter(|call| !self.is_left_out(call.number))
    }
}

/// The content of registers while a log is read.
#[derive(Default)]
struct Registers {
    functions: HashMap<String, u32>,
    /// The call that has set a register last.
    defined: HashMap<u32, u64>,
    /// For each wait for values, the call that made them.
    fetched: HashMap<u64, u64>,
}

impl Registers {
    fn free(&mut self, freed: &[u32]) {
        freed.iter().for_each(|register| _ = self.defined.remove(register));
    }
}

/// Adds a call, or the next operations of a call.
fn add_call(calls: &mut HashMap<u64, Call>, mut call: Call) {
    if let Some(first) = calls.remove(&call.number).filter(|first| first.more) {
        call.ops.splice(0..0, first.ops);
    }
    calls.insert(call.number, call);
}

/// The backend and the devices in the arguments of `init_ccl`.
fn data_plane(args: &[Described]) -> Option<(String, Vec<i64>)> {
    match args {
        [Described::Str(backend), _, Described::Shape(ordinals)] => Some((backend.to_string(), ordinals.to_vec())),
        _ => None,
    }
}
