//! A rank that executes requests of a test, in this process or in a child process.

use std::process;
use std::ptr;

use disco_gpu_double::cuda::abi::{DevicePointer, Stream};
use disco_gpu_double::cuda::exports::copy::{cuMemcpyDtoH_v2, cuMemcpyHtoD_v2};
use disco_gpu_double::cuda::exports::stream::{cuStreamQuery, cuStreamSynchronize};
use disco_gpu_double::nccl::abi::{CommHandle, DataType, RedOp, UniqueId};
use disco_gpu_double::nccl::config::Config;
use disco_gpu_double::nccl::exports::collective::{ncclAllReduce, ncclBroadcast};
use disco_gpu_double::nccl::exports::communicator::{
    ncclCommAbort, ncclCommDestroy, ncclCommFinalize, ncclCommInitRankConfig, ncclCommSplit,
};
use disco_gpu_double::nccl::exports::point_to_point::{ncclRecv, ncclSend};

use super::child::{self, Child, to_bytes, to_text};
use super::{
    OK, allocate, async_error, at, enter, failed, last_error, new_stream, set, settled, unique_id, wait_until,
};

/// The test that a child process runs to serve as a rank.
pub(crate) const CHILD: &str = "nccl_processes::child_that_is_a_rank";

/// A rank with a non-blocking communicator and one number in device memory.
pub(crate) struct LocalRank {
    rank: i32,
    comm: CommHandle,
    /// The child communicator of a split.
    part: CommHandle,
    stream: Stream,
    number: DevicePointer,
}

/// A rank in this process or in a child process.
pub(crate) enum RankHandle {
    Local(LocalRank),
    Remote(Child),
}

impl RankHandle {
    /// A rank in this process on a device.
    pub(crate) fn local(device: i32) -> Self {
        Self::Local(LocalRank::new(device))
    }

    /// A rank in a child process on a device.
    pub(crate) fn remote(device: i32) -> Self {
        let mut child = Child::start(CHILD);
        child.send(&device.to_string());
        Self::Remote(child)
    }

    /// Executes a request and returns the reply.
    pub(crate) fn ask(&mut self, request: &str) -> String {
        match self {
            Self::Local(local) => local.execute(request),
            Self::Remote(child) => child.ask(request),
        }
    }

    /// Sends a request to the child process without waiting for the reply.
    pub(crate) fn send(&mut self, request: &str) {
        match self {
            Self::Local(_) => panic!("that is this process"),
            Self::Remote(child) => child.send(request),
        }
    }

    /// Kills the child process.
    pub(crate) fn kill(&mut self) {
        match self {
            Self::Local(_) => panic!("that is this process"),
            Self::Remote(child) => child.kill(),
        }
    }
}

/// The body of the test [`CHILD`].
pub(crate) fn serve() {
    if !child::is(CHILD) {
        return;
    }
    let mut requests = child::requests();
    let mut local = LocalRank::new(requests.next().unwrap().parse().unwrap());
    requests.for_each(|request| child::reply(&local.execute(&request)));
}

impl LocalRank {
    fn new(device: i32) -> Self {
        enter(device);
        // With this version, launches are not in progress at first.
        set(c"GPU_DOUBLE_NCCL_VERSION", c"22105");
        let (comm, part) = (ptr::null_mut(), ptr::null_mut());
        Self { rank: device, comm, part, stream: new_stream(), number: allocate(4) }
    }

    /// Executes a request. The reply is the code as a number, if not said otherwise.
    fn execute(&mut self, request: &str) -> String {
        enter(self.rank);
        let words = request.split(' ').collect::<Vec<_>>();
        let number = |at: usize| words[at].parse::<i32>().unwrap();
        let (comm, stream, pair, f32) = (self.comm, self.stream, at(self.number, 0), DataType::F32);
        let code = match words[0] {
            "id" => return to_text(&unique_id().internal),
            // Arguments: the unique id, the number of ranks, the rank.
            "begin" => self.begin(words[1], number(2), number(3)),
            // Waits until the communicator is not in progress.
            "settle" => settled(comm),
            "fail" => failed(comm),
            "error" => async_error(comm),
            "why" => return last_error(comm),
            "sum" => ncclAllReduce(pair, pair, 1, f32, RedOp::SUM, comm, stream),
            "largest" => ncclAllReduce(pair, pair, 1, f32, RedOp::MAX, comm, stream),
            "broadcast" => ncclBroadcast(pair, pair, 1, f32, number(1), comm, stream),
            "send" => ncclSend(pair, 1, f32, number(1), comm, stream),
            "receive" => ncclRecv(pair, words.get(2).map_or(1, |_| 0), f32, number(1), comm, stream),
            // SAFETY: the configuration is null.
            "split" => unsafe { ncclCommSplit(comm, number(1), number(2), Some(&mut self.part), ptr::null()) },
            // Continues with the child communicator of the split.
            "part" => {
                self.comm = self.part;
                return "done".to_owned();
            }
            "finalize" => ncclCommFinalize(comm),
            "destroy" => ncclCommDestroy(comm),
            "abort" => ncclCommAbort(comm),
            // "rest" waits until the stream is idle; "idle" returns whether it is.
            "rest" => return wait_until(|| (cuStreamQuery(stream) == OK).then(|| "done".to_owned())),
            "idle" => return (cuStreamQuery(stream) == OK).to_string(),
            "put" => {
                self.put(number(1) as f32);
                return "done".to_owned();
            }
            // Waits for the stream and returns the number.
            "get" => return self.get().to_string(),
            "hear" => {
                set(c"GPU_DOUBLE_REMOTE_ERRORS", c"1");
                return "done".to_owned();
            }
            // Since this version, finalize waits for all ranks.
            "meet" => {
                set(c"GPU_DOUBLE_NCCL_VERSION", c"23100");
                return "done".to_owned();
            }
            "exit" => process::exit(0),
            other => panic!("{other}"),
        };
        code.0.to_string()
    }

    fn begin(&mut self, id: &str, ranks: i32, rank: i32) -> disco_gpu_double::nccl::abi::Code {
        let id = UniqueId { internal: to_bytes(id).try_into().unwrap() };
        let config = Config::non_blocking();
        self.comm = ptr::null_mut();
        // SAFETY: the configuration is whole.
        unsafe { ncclCommInitRankConfig(Some(&mut self.comm), ranks, id, rank, &config) }
    }

    fn put(&self, number: f32) {
        assert_eq!(cuStreamSynchronize(self.stream), OK);
        let bytes = number.to_le_bytes();
        // SAFETY: the source has this many bytes.
        let code = unsafe { cuMemcpyHtoD_v2(self.number, bytes.as_ptr().cast(), 4) };
        assert_eq!(code, OK);
    }

    fn get(&self) -> f32 {
        wait_until(|| (cuStreamQuery(self.stream) == OK).then_some(()));
        let mut bytes = [0; 4];
        // SAFETY: the destination has room for all bytes.
        let code = unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.number, 4) };
        assert_eq!(code, OK);
        f32::from_le_bytes(bytes)
    }
}
