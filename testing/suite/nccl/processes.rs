//! Ranks that are processes: they rendezvous through a store of files, and open each other's memory by the vendor's IPC
//! handles.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs, io, process, thread};

use disco::nccl::cuda::Cuda;
use disco::nccl::disco_ccl::p2p::{Consensus, MeetOutcome, Rendezvous, Workspace};
use disco::nccl::disco_ccl::{self, Runtime};
use disco::{DType, Device, DeviceApi as _, DeviceKind, Error, Op, Queue, Rank, Reduction, Store, Tensor};
use disco_conformance::waiting;

use crate::alone::{On, can_run, find_the_double, on_gpus};
use crate::own_process::repeat_skips;

/// Time limit that only a hang reaches.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

/// Time that ranks wait for each other. Processes on one GPU create their contexts one after the other.
fn rendezvous_deadline() -> Duration {
    Duration::from_secs(if on_gpus() { 20 } else { 5 })
}

const RANK_VARIABLE: &str = "DISCO_TEST_RANK";
const SIZE_VARIABLE: &str = "DISCO_TEST_SIZE";
const FOLDER_VARIABLE: &str = "DISCO_TEST_FOLDER";
/// Environment variable with the point where rank 1 dies.
const DIES_AT_VARIABLE: &str = "DISCO_TEST_DIES";
/// Environment variable that puts all ranks on one device.
const SHARED_DEVICE_VARIABLE: &str = "DISCO_TEST_SHARED";

/// A store whose values are files, for ranks outside of a session. This rank may die at a `set`.
#[derive(Debug)]
struct FileStore(PathBuf);

impl FileStore {
    fn path(&self, key: &str) -> PathBuf {
        self.0.join(key.bytes().map(|byte| format!("{byte:02x}")).collect::<String>())
    }

    fn put(&self, key: &str, value: &[u8]) -> io::Result<()> {
        let own = self.0.join(format!("{}-{:?}", process::id(), thread::current().id()));
        fs::write(&own, value)?;
        fs::rename(own, self.path(key))
    }

    /// Runs `work` under a lock that all ranks share.
    fn with_lock<T>(&self, work: impl FnOnce() -> io::Result<T>) -> disco::Result<T> {
        let done = File::create(self.0.join("lock")).and_then(|lock| {
            lock.lock()?;
            work()
        });
        done.map_err(|error| Error::Invalid(error.to_string()))
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> disco::Result<()> {
        let step = ["introduction", "offer", "written", "found"].into_iter().find(|step| key.contains(step));
        if let Some(step) = step {
            die_if_configured(&format!("before {step}"));
        }
        self.with_lock(|| self.put(key, value))
    }

    fn get(&self, key: &str) -> disco::Result<Option<Vec<u8>>> {
        Ok(fs::read(self.path(key)).ok())
    }

    fn wait(&self, key: &str, deadline: Duration) -> disco::Result<Vec<u8>> {
        waiting::poll(deadline, || self.get(key).transpose()).unwrap_or_else(|| {
            let (operation, state) = (key.to_owned(), String::new());
            Err(Error::Deadline { operation, after: deadline, state })
        })
    }

    fn add(&self, key: &str, amount: i64) -> disco::Result<i64> {
        self.with_lock(|| {
            let before = fs::read(self.path(key)).unwrap_or_else(|_| vec![0; 8]);
            let before = before.try_into().map_err(|_| io::Error::other(format!("{key} is no number")))?;
            let sum = i64::from_le_bytes(before).wrapping_add(amount);
            self.put(key, &sum.to_le_bytes()).map(|()| sum)
        })
    }

    fn compare_and_set(&self, key: &str, expected: Option<&[u8]>, new: &[u8]) -> disco::Result<Vec<u8>> {
        self.with_lock(|| match fs::read(self.path(key)).ok() {
            before if before.as_deref() == expected => self.put(key, new).map(|()| new.to_vec()),
            before => Ok(before.unwrap_or_default()),
        })
    }

    fn delete(&self, key: &str) -> disco::Result<bool> {
        self.with_lock(|| Ok(fs::remove_file(self.path(key)).is_ok()))
    }
}

fn number(variable: &str) -> usize {
    env::var(variable).unwrap().parse().unwrap()
}

/// Exits this process at once if it is rank 1 and is configured to die at `at`.
fn die_if_configured(at: &str) {
    if number(RANK_VARIABLE) == 1 && env::var(DIES_AT_VARIABLE).is_ok_and(|dies| dies == at) {
        process::abort();
    }
}

/// A rank, with its own device or the one that all ranks share.
pub(crate) struct GpuRank {
    pub(crate) queue: Box<dyn Queue>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    store: Arc<dyn Store>,
    is_shared: bool,
}

impl GpuRank {
    /// The rank of this process, as its environment says.
    fn from_env() -> Self {
        let store = Arc::new(FileStore(env::var_os(FOLDER_VARIABLE).unwrap().into()));
        Self::new(number(RANK_VARIABLE), number(SIZE_VARIABLE), store, env::var_os(SHARED_DEVICE_VARIABLE).is_some())
    }

    pub(crate) fn new(rank: usize, size: usize, store: Arc<dyn Store>, is_shared: bool) -> Self {
        let device = if is_shared { 0 } else { rank as i32 };
        let mut queue = Cuda.bind(Device::new(DeviceKind::Cuda, device)).unwrap();
        let runtime = disco_ccl::Queue::of(&mut *queue, DeviceKind::Cuda).unwrap().runtime().clone();
        Self { queue, runtime, rank, size, store, is_shared }
    }

    pub(crate) fn meet(&self) -> disco::Result<Consensus<MeetOutcome>> {
        let rendezvous =
            Rendezvous::new(self.store.clone(), "p2p".into(), (self.rank, self.size), rendezvous_deadline());
        let rendezvous = if self.is_shared { rendezvous.sharing_devices() } else { rendezvous };
        Workspace::meet(&self.runtime, &rendezvous, 1 << 16, disco::nccl::p2p::mesh, |_| vec![self.rank as u8])
    }

    fn shared_workspace(&self) -> Workspace {
        match self.meet().unwrap() {
            Consensus::Accepted(met) => {
                assert_eq!(met.notes, (0..self.size).map(|rank| vec![rank as u8]).collect::<Vec<_>>());
                met.workspace
            }
            Consensus::Declined(why) => panic!("apart: {why}"),
        }
    }

    pub(crate) fn tensor(&mut self, numbers: &[f32]) -> Tensor {
        let storage = self.queue.alloc(size_of_val(numbers)).unwrap();
        let tensor = Tensor::from_storage(storage, DType::F32, [numbers.len() as i64]).unwrap();
        let host = Tensor::from_slice(numbers, [numbers.len() as i64]).unwrap();
        self.queue.copy_in(&tensor, &host).unwrap();
        tensor
    }

    fn read(&mut self, tensor: &Tensor) -> Vec<f32> {
        let host = Tensor::zeros(DType::F32, tensor.shape().clone()).unwrap();
        self.queue.copy_out(&host, tensor).unwrap();
        self.queue.synchronize(rendezvous_deadline()).unwrap();
        host.to_vec().unwrap()
    }
}

/// Starts a process per rank of a test; returns whether each succeeded, and its output.
fn ranks(test: &str, size: usize, variables: &[(&str, &str)]) -> Vec<(bool, String)> {
    let folder = env::temp_dir().join(format!("disco-{}-{}", test.replace(':', "-"), process::id()));
    fs::create_dir_all(&folder).unwrap();
    // On GPUs: each rank has its own if there are enough, else all share one.
    let devices = if on_gpus() { Cuda.count().unwrap() } else { size };
    let children: Vec<Child> = (0..size)
        .map(|rank| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
            find_the_double(&mut command);
            if on_gpus() && devices < size {
                command.env(SHARED_DEVICE_VARIABLE, "1");
            }
            command.env(FOLDER_VARIABLE, &folder);
            command
                .env(RANK_VARIABLE, rank.to_string())
                .env(SIZE_VARIABLE, size.to_string())
                .env("RUST_BACKTRACE", "0");
            command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let start = Instant::now();
    let results = children.into_iter().map(|mut child| {
        let left = HANG_TIMEOUT.saturating_sub(start.elapsed());
        assert!(waiting::poll(left, || child.try_wait().unwrap()).is_some(), "{test} hangs");
        let output = child.wait_with_output().unwrap();
        let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat();
        repeat_skips(&text);
        (output.status.success(), text)
    });
    let results = results.collect();
    fs::remove_dir_all(folder).unwrap();
    results
}

fn all_pass(test: &str, size: usize, variables: &[(&str, &str)]) {
    for (rank, (is_fine, text)) in ranks(test, size, variables).into_iter().enumerate() {
        assert!(is_fine && text.contains("1 passed"), "rank {rank}:\n{text}");
    }
}

#[test]
fn processes_read_and_write_each_other_s_memory() {
    for size in ["2", "4"] {
        all_pass("processes::go_around", size.parse().unwrap(), &[]);
    }
}

#[test]
#[ignore = "a rank that the test above it starts as a process"]
fn go_around() {
    let mut gpu = GpuRank::from_env();
    let (shared, own) = (gpu.shared_workspace(), gpu.rank);
    let rank = |index: usize| Rank::new((index % gpu.size) as u32);
    let (next, previous) = (rank(own + 1), rank(own + gpu.size - 1));
    for round in 0..50 {
        let tensor = gpu.tensor(&[(own * 100 + round) as f32; 100]);
        if round > 0 {
            shared.main().wait(next, 1).unwrap();
        }
        shared.main().put(&tensor, next, 4096).unwrap();
        shared.main().signal(next, 0).unwrap();
        shared.main().wait(previous, 0).unwrap();
        let mine = shared.p2p_buffer(shared.rank(), 4096, [100], DType::F32).unwrap();
        assert_eq!(gpu.read(&mine), [(previous.index() * 100 + round) as f32; 100]);
        shared.main().signal(previous, 1).unwrap();
    }
    shared.main().barrier().unwrap();
    let theirs = shared.p2p_buffer(next, 4096, [100], DType::F32).unwrap();
    assert_eq!(gpu.read(&theirs), [(own * 100 + 49) as f32; 100]);
    // Another rank is the last to leave each time; no read fails.
    shared.main().barrier().unwrap();
    gpu.queue.synchronize(rendezvous_deadline()).unwrap();
    // The ranks leave one after the other.
    thread::sleep(Duration::from_millis(20 * own as u64));
}

#[test]
fn memory_that_can_not_be_opened_is_the_reason_on_all_ranks() {
    if !can_run("memory_that_can_not_be_opened_is_the_reason_on_all_ranks", On::Double) {
        return;
    }
    let fault = [("GPU_DOUBLE_FAULTS", "cuIpcOpenMemHandle_v2:1:1=201")];
    for (rank, (_, text)) in ranks("processes::stay_apart", 3, &fault).into_iter().enumerate() {
        let why = "apart: rank 1: can't open the memory of rank 0: cuda: cuIpcOpenMemHandle returned 201: ";
        assert!(text.contains(why) && text.contains("1 passed"), "rank {rank}:\n{text}");
    }
    let fault = [("GPU_DOUBLE_FAULTS", "cuIpcGetMemHandle:0:1=801")];
    for (rank, (_, text)) in ranks("processes::stay_apart", 3, &fault).into_iter().enumerate() {
        let why = "apart: rank 1: rank 0 can't share its memory: cuda: cuIpcGetMemHandle returned 801: ";
        assert!(text.contains(why) && text.contains("1 passed"), "rank {rank}:\n{text}");
    }
}

#[test]
fn ranks_that_see_different_links_do_not_share_memory() {
    for (rank, (_, text)) in ranks("processes::see_otherwise", 3, &[]).into_iter().enumerate() {
        let whys = ["apart: rank 0 sees fully_connected by [", ", and rank 1 unknown by ["];
        assert!(whys.iter().all(|why| text.contains(why)) && text.contains("1 passed"), "rank {rank}:\n{text}");
    }
}

#[test]
#[ignore = "a rank that the test above it starts as a process"]
fn stay_apart() {
    let gpu = GpuRank::from_env();
    match gpu.meet().unwrap() {
        Consensus::Accepted(_) => panic!("together"),
        Consensus::Declined(why) => eprintln!("apart: {why}"),
    }
}

#[test]
#[ignore = "a rank that the test above it starts as a process"]
fn see_otherwise() {
    let gpu = GpuRank::from_env();
    let shape = if gpu.rank == 1 { "unknown" } else { "fully_connected" };
    #[allow(unsafe_code, reason = "there is no other thread yet that reads it")]
    // SAFETY: this process has one thread that reads or writes the environment.
    unsafe {
        env::set_var("DISCO_P2P_TOPOLOGY", shape);
    }
    match gpu.meet().unwrap() {
        Consensus::Accepted(_) => panic!("together"),
        Consensus::Declined(why) => eprintln!("apart: {why}"),
    }
}

#[test]
fn a_rank_that_dies_during_the_rendezvous_is_named() {
    for at in ["introduction", "offer", "written", "found"].map(|step| format!("before {step}")) {
        let results = ranks("processes::miss_one", 3, &[(DIES_AT_VARIABLE, &at)]);
        for rank in [0, 2] {
            let (_, text) = &results[rank];
            let why = format!("meet: no end after {:?}: rank 1 has not arrived", rendezvous_deadline());
            assert!(text.contains(&why) && text.contains("1 passed"), "{at}: rank {rank}:\n{text}");
        }
        assert!(!results[1].1.contains("passed"), "{at}: {}", results[1].1);
    }
}

#[test]
#[ignore = "a rank that the test above it starts as a process"]
fn miss_one() {
    let gpu = GpuRank::from_env();
    eprintln!("{}", gpu.meet().unwrap_err());
}

#[test]
fn a_rank_that_dies_after_the_rendezvous_is_named_and_streams_continue() {
    let results = ranks("processes::lose_one", 3, &[(DIES_AT_VARIABLE, "with all")]);
    for rank in [0, 2] {
        let (_, text) = &results[rank];
        assert!(
            text.contains("rank 1 has not reached the barrier") && text.contains("1 passed"),
            "rank {rank}:\n{text}"
        );
    }
}

#[test]
#[ignore = "a rank that the test above it starts as a process"]
fn lose_one() {
    let mut gpu = GpuRank::from_env();
    let shared = gpu.shared_workspace();
    shared.main().barrier().unwrap();
    gpu.queue.synchronize(rendezvous_deadline()).unwrap();
    die_if_configured("with all");
    shared.main().barrier().unwrap();
    let error = gpu.queue.synchronize(Duration::from_millis(300)).unwrap_err();
    eprintln!("{error}: {}", shared.stalled_on().unwrap());
    shared.abort(&"it is over".into());
    // The stream has no pending wait any more.
    gpu.queue.synchronize(rendezvous_deadline()).unwrap();
    let refused = shared.main().barrier().unwrap_err().to_string();
    assert!(refused.contains("it is over"), "{refused}");
}

#[test]
fn processes_sum_by_kernels() {
    let nvrtc = crate::alone::nvrtc();
    if nvrtc.is_empty() {
        println!("skipped: NVRTC is not there");
        return;
    }
    let variables = [("DISCO_NVRTC_LIBRARY", &*nvrtc), ("DISCO_P2P_TOPOLOGY", "fully_connected")];
    all_pass("processes::sum", 3, &variables);
    all_pass(
        "processes::sum",
        2,
        &[variables[0], variables[1], (SHARED_DEVICE_VARIABLE, "1"), ("GPU_DOUBLE_DEVICES", "1")],
    );
}

#[test]
#[ignore = "a rank that the test above it starts as a process"]
fn sum() {
    crate::one_device::sums(&mut GpuRank::from_env());
}

#[test]
fn the_deadline_names_a_process_that_died_before_a_sum() {
    let nvrtc = crate::alone::nvrtc_of_the_double();
    if nvrtc.is_empty() {
        println!("skipped: NVRTC is not there");
        return;
    }
    let variables =
        [("DISCO_NVRTC_LIBRARY", &*nvrtc), ("DISCO_P2P_TOPOLOGY", "fully_connected"), (DIES_AT_VARIABLE, "with all")];
    let results = ranks("processes::sum_without_one", 3, &variables);
    for rank in [0, 2] {
        let (_, text) = &results[rank];
        let why =
            "all_reduce over peer-to-peer memory: no end after 300ms: rank 1 has not arrived at the leading handshake";
        assert!(text.contains(why) && text.contains("1 passed"), "rank {rank}:\n{text}");
    }
}

#[test]
#[ignore = "a rank that the test above it starts as a process"]
fn sum_without_one() {
    let mut gpu = GpuRank::from_env();
    let (shared, kernels) = crate::one_device::start(&gpu, Duration::from_millis(300));
    let tensor = gpu.tensor(&[1.0; 64]);
    // Compiling takes a different time on each rank.
    shared.main().barrier().unwrap();
    gpu.queue.synchronize(HANG_TIMEOUT).unwrap();
    die_if_configured("with all");
    let op = Op::AllReduce { src: None, dst: tensor, reduction: Reduction::Sum };
    assert_eq!(kernels.launch(&op).unwrap(), Ok(()));
    gpu.queue.synchronize(rendezvous_deadline()).unwrap();
    eprintln!("{}", kernels.check().unwrap_err());
}
