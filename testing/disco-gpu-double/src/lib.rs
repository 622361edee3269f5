//! A **test double** of the NVIDIA libraries NCCL, CUDA driver, NVML and NVRTC and of the AMD libraries RCCL and HIP.
//! It exports their C functions and runs them over host memory, on a machine without a GPU. For tests only.
//!
//! The crate builds one shared object, `libdisco_gpu_double.so`, that exports all six interfaces. A test makes links to
//! it under the names that loaders look for (`libcuda.so.1`, `libcuda.so`, `libnccl.so.2`, `libnvidia-ml.so.1`;
//! `libamdhip64.so.6`, `librccl.so.1`) in a folder, and puts this folder into `LD_LIBRARY_PATH`; [`folder()`] does the
//! first part. The links must be symbolic, or hard links to one file, so that a loader that opens several names maps
//! one image with one state. A test program that also links this crate as a Rust library has a second image. It calls
//! the loaded image through the C functions of [`controls`] (`gpu_double_counts`, `gpu_double_set`), which it looks up
//! by name.
//!
//! ```text
//!      nccl ───────┬───── hip        nvml     nvrtc
//!        └──────▶ cuda ◀────┘          │
//!                  └──▶ settings ◀─────┘
//!
//! cuda       devices, contexts, memory, streams, events, and Disco's own kernels
//! hip        the same devices by HIP's functions: a current device for each thread, no contexts
//! nccl       communicators, collectives, sends and receives; the functions that only RCCL has
//! nvml       links between the GPUs of known machines
//! nvrtc      a compiler that accepts every source and compiles nothing; a test gives its path
//! settings   variables, and injected faults
//! counts     counters of launched work and of live resources
//! controls   C functions of the double itself
//! folder     folders with links to the shared object
//! ```
//!
//! ```
//! use disco_gpu_double::cuda::exports::device::{cuDeviceGetCount, cuInit};
//!
//! let mut count = 0;
//! assert_eq!(cuInit(0).0, 0);
//! assert_eq!(cuDeviceGetCount(Some(&mut count)).0, 0);
//! assert_eq!(count, 4);
//! ```
//!
//! Next: [`folder()`] and [`controls`] for tests; the tables of variables and faults below.
//!
//! # Checks
//!
//! Some wrong programs hang or compute wrong numbers only sometimes with the real libraries. The double refuses them
//! each time, with an error text:
//!
//! - ranks whose collectives differ, or are in groups of different sizes, and sends that differ from their receives: the
//!   asynchronous error of every rank is `ncclInvalidUsage`;
//! - overlapping buffers of a call, except in place: `ncclInvalidArgument`; of calls in a group: `ncclInvalidUsage`, or
//!   `ncclInvalidArgument` among sends and receives;
//! - buffers that are not inside one allocation of the communicator's device: `ncclInvalidArgument`;
//! - the per-thread default stream (`CU_STREAM_PER_THREAD`), which is another stream on the threads that launch the work
//!   of a non-blocking communicator: `ncclInvalidArgument`;
//! - two threads in calls of one communicator, and calls of a finalized communicator: `ncclInvalidUsage`; of a
//!   communicator that is in progress: `ncclInvalidArgument`;
//! - two ranks on one device, unless the version is 2.30.3 or later and `NCCL_MULTI_RANK_GPU_ENABLE=1`, and the second
//!   use of a unique id: `ncclInvalidUsage`;
//! - work on freed memory: `CUDA_ERROR_ILLEGAL_ADDRESS`, which is sticky until the device's context is released;
//!   by HIP `hipErrorIllegalAddress`, which is sticky until the process ends;
//! - work on memory of another process that was closed or that the other process has freed: the same errors; also a
//!   word of another device's memory that a stream writes or waits for without access to this memory;
//! - buffers in a memory pool that the device of a peer can't access: `ncclInvalidArgument`. The ranks of a process
//!   have access to each other's memory from the first communicator on, and the library may read the buffer of a peer
//!   in place;
//! - launches whose parameters point to memory that does not exist or that the device can't access: an illegal address;
//!   launches with an unsupported grid: `CUDA_ERROR_INVALID_VALUE`;
//! - words that a HIP stream writes to coarse-grained memory (`hipMalloc`) of another device, where a wait may never
//!   see them: `hipErrorInvalidValue`;
//! - copies by HIP whose kind differs from the places of their memory, or from the host to the host:
//!   `hipErrorInvalidValue`.
//!
//! # Order and completion of work
//!
//! `cuMemFree`, `cuMemFreeHost` and HIP's frees wait for all work of the device, of the devices with access to its
//! memory, and of the devices to whose memory it has access. Frees of a pool (`cuMemFreeAsync`, `hipFreeAsync`) are
//! work of a stream, and do not wait.
//!
//! A launch of a non-blocking communicator is in progress at first if it connects ranks; since version 2.22.3 every
//! launch is. The first collective (since 2.22.3), and the first send to or receive from a rank, connects: it waits for
//! the launches of those ranks, inside the call if the communicator is blocking. `ncclCommAbort` ends such a wait and
//! the work of the communicator; in a group it frees nothing before the end of the group. The handle of a child
//! communicator is null until its split is done. `ncclCommAbort` and `ncclCommDestroy` return at once for all ranks of
//! a process but the last, which waits for the work of all. Until the work of an aborted rank has ended, it may write
//! to the outputs of all ranks that have arrived at its collective, including aborted ranks. If such memory was freed,
//! the access is an illegal address; for memory of a pool, only if the pool has made another allocation since.
//! `ncclCommFinalize` waits for the other ranks since 2.31.
//!
//! The ordinary streams of a device share hardware queues, as on a real device: stream `k` of a device, counted from 0
//! in the order of creation, has queue `k` modulo `CUDA_DEVICE_MAX_CONNECTIONS` (by HIP `GPU_MAX_HW_QUEUES`). A queue
//! dispatches work in the order in which it was submitted to any of its streams. A wait for a word or an event is
//! dispatched when the wait ends, and until then it blocks all later work of its queue: a stream that is to write the
//! awaited word may never run. Kernels, copies, writes of words, records of events and units of NCCL are dispatched
//! when they start, which is when the earlier work of their stream is done: kernels of two streams of one queue run at
//! the same time. A stream with a priority above the default has a queue of its own, and so has each default stream: the
//! legacy one of the device, and that of each thread.
//!
//! Each stream has a thread that runs its work. An asynchronous copy accesses pinned memory (`cuMemHostAlloc`,
//! `hipHostMalloc`) when the stream runs it. A copy from other host memory has read it before the call returns; a copy
//! to other host memory waits for the stream. The time of an event is that of the host's monotonic clock when its stream's
//! thread has reached it. Fresh memory is filled with 0xA5. A send completes only after its receive
//! has begun, even a send of 0 elements.
//!
//! # Memory of several processes
//!
//! Device memory is in one memory file for each device. Another process of the double may open it
//! (`cuIpcOpenMemHandle_v2`, `hipIpcOpenMemHandle`) through `/proc`, if the system permits that; both processes see
//! each other's writes. Device 0 of one process is device 0 of all. A handle of a process that has ended, or of freed
//! memory, is `CUDA_ERROR_INVALID_HANDLE`; opened memory stays valid when its process ends.
//!
//! # Communicators of several processes
//!
//! The ranks of a communicator are threads of any processes of one machine and network namespace that may open each
//! other's memory as above, including memory of pools. The process that has made the unique id is the *host* of the
//! communicator and of all communicators that are split off it. The other processes connect to the host by a socket
//! whose name is in the id. Threads of the host access the memory of all ranks in place of NCCL's kernels, so the
//! checks are the same as in one process.
//!
//! If a process ends without leaving its communicators, its peers see an abort: their work waits until they abort, or
//! they get an error with `GPU_DOUBLE_REMOTE_ERRORS=1`. The same holds for a host that has ranks of the communicator.
//! If a host without ranks of a communicator ends, the ranks get `ncclSystemError`; ranks that are joining or splitting
//! get `ncclRemoteError`. At exit, a host waits for up to 5 s until the other processes have ended their communicators.
//!
//! Faults, counters and variables belong to one process.
//!
//! # Kernels
//!
//! Every module contains the kernels of `disco-nccl` and no others. A loaded image must begin like an ELF object file;
//! the rest is ignored. The kernels have the effects of the real ones on memory, including handshakes in the memory of
//! other processes, but they run one block after the other: no block may wait for another block of the same launch.
//!
//! # Captures and graphs
//!
//! Calls on a captured stream (`cuStreamBeginCapture_v2`, `hipStreamBeginCapture`) add nodes to a graph: copies on
//! devices and to and from pinned memory, fills, words, kernels, and units of NCCL. Other streams join the capture by
//! events. A launch runs the nodes one after the other in the order of the capture. Each launch makes a new unit of
//! NCCL, after all earlier units of the communicator. `ncclCommFinalize`, `ncclCommDestroy` and `ncclCommAbort`
//! complete only after all graphs with units of the communicator are destroyed. `cuGraphExecDestroy` does not wait, and
//! running launches complete.
//!
//! A call that is not allowed in a capture returns the driver's code and invalidates the capture, whose end returns
//! `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`:
//!
//! | call | code |
//! |---|---|
//! | allocations and frees of device or pinned memory, queries of events, calls that wait for the device, modules, memory of other processes: in the capturing thread, and for a global capture in all threads; not if the capture is relaxed | 900 `STREAM_CAPTURE_UNSUPPORTED` |
//! | a query of the captured stream or a wait for it, in all modes; the default stream | 900 |
//! | allocations of `cuMemAllocFromPoolAsync` and of HIP on the captured stream, and copies of host memory that is not pinned (the real driver adds nodes for them) | 900 |
//! | a free of memory that the capture has not allocated by `cuMemAllocAsync`; an end of the capture with such memory that is not freed (the real driver launches that graph once) | 1 `INVALID_VALUE` |
//! | a query of an event whose last record is in a capture | 907 `CAPTURED_EVENT` |
//! | a wait for an event outside of the capture; for an event of another capture | 905; 902 |
//! | an end of the capture with streams that have not joined again; on another stream; on another thread | 904; 903; 908 |
//!
//! # Limitations
//!
//! - Ranks of several machines are not supported.
//! - Init, split, finalize and destroy are refused in a group, and so are two streams for one communicator.
//! - `ncclAllToAllv` is a group of sends and receives, and counts as one call.
//! - The last release of a context destroys nothing, so that leaks are counted. Modules are not counted.
//! - Events have times of the host's clock, which say nothing about a device.
//! - Maximum and minimum of floats ignore NaN, as `fmaxf` does.
//! - The per-thread default streams can't be captured. A thread that ends does not wait for its stream.
//! - Graphs are made by captures only. Two launches of one graph on two streams may run at once.
//!
//! # Variables
//!
//! They are read from the environment at the first call that needs one. `gpu_double_set(name, value)` changes a
//! variable later. The number of devices is fixed by the first successful `cuInit`, or by the first function of HIP
//! that needs a device; the other variables are effective at each use. An invalid value ends the process.
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_DOUBLE_DEVICES` | 4 | number of devices |
//! | `GPU_DOUBLE_MEMORY` | 1073741824 | bytes of memory of each device |
//! | `GPU_DOUBLE_NCCL_VERSION` | 22809 | result of `ncclGetVersion`; all functions exist for any version |
//! | `GPU_DOUBLE_DRIVER` | 13000 | result of `cuDriverGetVersion` |
//! | `GPU_DOUBLE_HIP` | 60342131 | result of `hipRuntimeGetVersion`: 6.3.42131 |
//! | `GPU_DOUBLE_INIT` | 0 | return code of `cuInit` and of HIP's functions that need a device: 100 no device, 803 driver mismatch |
//! | `GPU_DOUBLE_CONNECT` | 0 | launches of a non-blocking communicator that are in progress at first: 0 as the version does, 1 those that connect, 2 all |
//! | `GPU_DOUBLE_DELAY_US` | 0 | minimum duration of each piece of stream work and of background work, in µs |
//! | `GPU_DOUBLE_REMOTE_ERRORS` | 0 | 1: 10 ms after an abort or the end of a rank's process, the asynchronous error of its peers is `ncclRemoteError` |
//! | `GPU_DOUBLE_NVLINK` | pcie | the machine that NVML reports: `pcie` no links, `dgx1` eight V100 in a hybrid cube mesh, `broken` the same with one end of a link down, `dgx2` sixteen V100 on switches, `h100` eight H100 on switches; CUDA shows the first `GPU_DOUBLE_DEVICES` of them |
//! | `GPU_DOUBLE_PEER_ACCESS` | 1 | 0: no device can access another device's memory |
//! | `GPU_DOUBLE_PEER_FREES` | 1 | 0: a free waits for its own device only, which the real driver does not promise |
//! | `GPU_DOUBLE_PRIORITIES` | 1 | 0: all streams have the default priority |
//! | `GPU_DOUBLE_FAULTS` | | injected faults, see below |
//! | `CUDA_DEVICE_MAX_CONNECTIONS` | 8 | hardware queues that the ordinary streams of a device share by CUDA; may exceed the real driver's maximum of 32 |
//! | `GPU_MAX_HW_QUEUES` | 4 | the same by HIP |
//! | `GPU_STREAMOPS_CP_WAIT` | 0 | 1: `hipStreamWaitValue32` refuses words outside of signal memory |
//!
//! # Faults
//!
//! A comma-separated list of `function:rank:n=action`: the fault of the n-th call of the function by the rank, counted
//! from 1. With the rank `*`, the n-th call of each rank. The rank is that in the communicator of the call: in the
//! parent for a split, in each communicator of the group for `ncclGroupEnd`. For functions of CUDA, HIP and NVML, it is
//! the ordinal of the device.
//!
//! | action | |
//! |---|---|
//! | a number | the call returns this code and has no effect |
//! | `async:CODE` | the call succeeds; when the stream reaches its work, the communicator gets this error, and the work never completes |
//! | `hang` | the call succeeds; its work never completes |
//! | `block` | the call returns only when the communicator is aborted (`ncclInternalError`) or after a minute (`ncclSystemError`) |
//!
//! `ncclCommAbort` ends work that never completes. Functions of NCCL with faults: all that communicate, `ncclGroupEnd`,
//! `ncclCommInitRank`, `ncclCommInitRankConfig`, `ncclCommSplit`, `ncclCommFinalize`, `ncclCommDestroy`; `ncclMemAlloc`
//! takes a code of CUDA. A fault of `ncclAllToAll` is also one of `ncclAlltoAll`. A call of `ncclAllToAllv` also counts
//! as calls of `ncclSend` and `ncclRecv`, to and from each rank, and of `ncclGroupEnd`. Functions of CUDA and HIP take
//! numbers only: those of contexts, streams, events and memory except frees and destroys, and `hipSetDevice`; those of
//! modules, peer access, memory of other processes and words, including the functions that release; those of captures
//! and graphs, except queries of a capture and destroys. All functions of NVML except `nvmlShutdown` take numbers
//! (`nvmlInit_v2` counts as device 0's).

mod codes;
pub mod controls;
mod counts;
pub mod cuda;
pub mod folder;
mod handles;
pub mod hip;
pub mod nccl;
pub mod nvml;
pub mod nvrtc;
mod settings;
mod sync;

pub use folder::{folder, hip_folder};
