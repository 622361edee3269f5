//! Records metrics.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::LazyLock;
use std::time::Instant;

use metrics::{
    Key, Label, Level, Metadata, Unit, counter, describe_counter, describe_histogram, histogram, with_recorder,
};

use crate::op::{Op, OpKind};

const COMMANDS: &str = "disco_commands_total";
const WAIT: &str = "disco_wait_seconds";
const CALL: &str = "disco_call_seconds";
const OPERATION: &str = "disco_operation_seconds";
const OPERATION_BYTES: &str = "disco_operation_bytes_total";
const FAILURES: &str = "disco_failures_total";
const LOSSES: &str = "disco_losses_total";
const REPLACEMENTS: &str = "disco_replacements_total";

/// Classes of sizes: the largest number of bytes of a class, and its name.
const SIZES: [(usize, &str); 6] =
    [(0, "0"), (1 << 10, "1KiB"), (64 << 10, "64KiB"), (1 << 20, "1MiB"), (16 << 20, "16MiB"), (256 << 20, "256MiB")];
/// The name of the class above all others.
const LARGER: &str = "larger";

/// Where the metrics of operations are recorded, for recorders that filter.
static METADATA: Metadata<'static> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// The metrics of an operation, made once: an operation may take less than a microsecond.
struct Keys {
    /// For each class of sizes, those of failed and of successful operations.
    seconds: Vec<[Key; 2]>,
    bytes: Key,
}

static OPERATIONS: LazyLock<Vec<Keys>> = LazyLock::new(|| OpKind::ALL.map(Keys::new).into());

/// Gives the recorder the units and the descriptions of all metrics.
pub(crate) fn describe() {
    describe_counter!(COMMANDS, Unit::Count, "Commands that the controller has given to its workers");
    describe_histogram!(WAIT, Unit::Seconds, "Waits of the controller for replies, from the command to the last reply");
    describe_histogram!(CALL, Unit::Seconds, "Worker functions, from entry to return, on their worker");
    describe_histogram!(OPERATION, Unit::Seconds, "Collectives, sends and receives of a rank, from entry to return");
    describe_counter!(OPERATION_BYTES, Unit::Bytes, "Bytes of tensors of a rank's operations");
    describe_counter!(FAILURES, Unit::Count, "Worker functions and other commands that failed on their worker");
    describe_counter!(REPLACEMENTS, Unit::Count, "Workers that have replaced lost ones");
    describe_counter!(LOSSES, Unit::Count, "Reports that workers or nodes are lost");
}

thread_local! {
    /// The metrics of the commands that this thread has given, by the commands' names.
    static COMMAND_KEYS: RefCell<Vec<(&'static str, Rc<Key>)>> = const { RefCell::new(Vec::new()) };
}

/// The controller gives its workers a command.
pub(crate) fn command(name: &'static str) {
    let key = COMMAND_KEYS.with_borrow_mut(|keys| {
        if let Some((_, key)) = keys.iter().find(|(known, _)| *known == name) {
            return key.clone();
        }
        let key = Rc::new(Key::from_parts(COMMANDS, vec![Label::from_static_parts("command", name)]));
        keys.push((name, key.clone()));
        key
    });
    with_recorder(|recorder| recorder.register_counter(&key, &METADATA).increment(1));
}

/// The metric of a worker function. The first call makes the key: a call may take less than a microsecond.
pub(crate) struct Calls(OnceCell<Key>);

impl Calls {
    pub(crate) const fn new() -> Self {
        Self(OnceCell::new())
    }

    /// Calls the function.
    pub(crate) fn time<T>(&self, function: &str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let key = || Key::from_parts(CALL, vec![Label::new("function", function.to_owned())]);
        let key = self.0.get_or_init(key);
        with_recorder(|recorder| recorder.register_histogram(key, &METADATA).record(start.elapsed()));
        result
    }
}

/// A command has failed on its worker.
pub(crate) fn failure(operation: &str) {
    counter!(FAILURES, "operation" => operation.to_owned()).increment(1);
}

/// So many workers have replaced lost ones.
pub(crate) fn replaced(workers: usize) {
    counter!(REPLACEMENTS).increment(workers as u64);
}

/// A session is lost.
pub(crate) fn loss() {
    counter!(LOSSES).increment(1);
}

/// A wait of the controller for replies.
pub(crate) struct Wait {
    operation: &'static str,
    start: Instant,
}

impl Wait {
    pub(crate) fn start(operation: &'static str) -> Self {
        Self { operation, start: Instant::now() }
    }

    pub(crate) fn end(self, is_ok: bool) {
        histogram!(WAIT, "operation" => self.operation, "result" => result(is_ok)).record(self.start.elapsed());
    }
}

/// Operations that a rank has started together.
pub(crate) struct Running {
    kind: Option<OpKind>,
    bytes: usize,
    start: Instant,
}

impl Running {
    pub(crate) fn start(ops: &[Op]) -> Self {
        let bytes = ops.iter().map(bytes).sum();
        Self { kind: ops.first().map(Op::kind), bytes, start: Instant::now() }
    }

    pub(crate) fn end(self, is_ok: bool) {
        let Some(keys) = self.kind.and_then(|kind| OPERATIONS.get(kind as usize)) else { return };
        let (key, time) = (&keys.seconds[class(self.bytes)][usize::from(is_ok)], self.start.elapsed());
        with_recorder(|recorder| {
            recorder.register_histogram(key, &METADATA).record(time);
            if is_ok {
                recorder.register_counter(&keys.bytes, &METADATA).increment(self.bytes as u64);
            }
        });
    }
}

impl Keys {
    fn new(kind: OpKind) -> Self {
        let operation = Label::from_static_parts("operation", kind.name());
        let key = |size, is_ok| {
            let labels =
                [("size", size), ("result", result(is_ok))].map(|(key, value)| Label::from_static_parts(key, value));
            Key::from_parts(OPERATION, [vec![operation.clone()], labels.into()].concat())
        };
        let names = SIZES.iter().map(|(_, name)| *name).chain([LARGER]);
        let seconds = names.map(|size| [false, true].map(|is_ok| key(size, is_ok))).collect();
        let bytes = Key::from_parts(OPERATION_BYTES, vec![operation.clone()]);
        Self { seconds, bytes }
    }
}

/// The bytes of an operation on its rank: those of the larger one of its tensors, as nccl-tests count.
fn bytes(op: &Op) -> usize {
    op.src().into_iter().chain(op.dst()).map(|tensor| tensor.byte_len()).max().unwrap_or(0)
}

/// The index of the class of sizes; that of [`LARGER`] follows the others.
fn class(bytes: usize) -> usize {
    SIZES.iter().position(|(largest, _)| bytes <= *largest).unwrap_or(SIZES.len())
}

fn result(is_ok: bool) -> &'static str {
    if is_ok { "ok" } else { "error" }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use metrics::{Counter, Gauge, Histogram, KeyName, Recorder, SharedString};

    use super::*;
    use crate::tensor::Tensor;

    /// Keeps the keys of the recorded values.
    #[derive(Default)]
    struct Keeper(Mutex<Vec<String>>);

    impl Keeper {
        fn keep(&self, key: &Key) {
            self.0.lock().unwrap().push(key.to_string());
        }
    }

    impl Recorder for Keeper {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            self.keep(key);
            Counter::noop()
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            self.keep(key);
            Histogram::noop()
        }
    }

    #[test]
    fn metrics_have_the_names_and_labels_of_the_guide() {
        let keeper = Keeper::default();
        metrics::with_local_recorder(&keeper, || {
            let dst = Tensor::from_slice(&[0f32; 512], [512]).unwrap();
            let group = [Op::Broadcast { src: None, dst, root: 0.into() }, Op::Barrier];
            Running::start(&group).end(true);
            Running::start(&group[1..]).end(false);
            Running::start(&[]).end(true);
            Wait::start("sync_all").end(false);
            Calls::new().time("train.step", || ());
            failure("train.step");
            command("call");
            loss();
        });
        let keys = keeper.0.into_inner().unwrap();
        assert_eq!(
            keys,
            [
                "Key(disco_operation_seconds, [operation = broadcast, size = 64KiB, result = ok])",
                "Key(disco_operation_bytes_total, [operation = broadcast])",
                "Key(disco_operation_seconds, [operation = barrier, size = 0, result = error])",
                "Key(disco_wait_seconds, [operation = sync_all, result = error])",
                "Key(disco_call_seconds, [function = train.step])",
                "Key(disco_failures_total, [operation = train.step])",
                "Key(disco_commands_total, [command = call])",
                "Key(disco_losses_total)",
            ]
        );
    }

    #[test]
    fn the_size_class_of_an_operation_is_the_smallest_that_holds_its_bytes() {
        let classes = [0, 1, 1024, 1025, 64 << 10, 256 << 20, (256 << 20) + 1].map(class);
        assert_eq!(classes, [0, 1, 1, 2, 2, 5, 6]);
        let key = &OPERATIONS[OpKind::AllReduce as usize].seconds[6][1];
        let labels: Vec<_> = key.labels().map(|label| (label.key(), label.value())).collect();
        assert_eq!(labels, [("operation", "all_reduce"), ("size", "larger"), ("result", "ok")]);
    }
}
