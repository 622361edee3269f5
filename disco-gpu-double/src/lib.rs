//! A **test double** of NCCL, of the CUDA driver, of NVML and of NVRTC, and of RCCL and of HIP's runtime: what they export,
//! over host memory, on a machine without a GPU.
//!
//! It is for tests alone. The crate makes one shared object, `libdisco_gpu_double.so`, that exports all six interfaces. A test
//! links to it under the names that loaders look for - `libcuda.so.1`, `libcuda.so`, `libnccl.so.2`, `libnvidia-ml.so.1` of NVIDIA's,
//! `libamdhip64.so.6`, `librccl.so.1` of AMD's - in a folder of its own, and has that folder in `LD_LIBRARY_PATH`. The links must be
//! symbolic, or hard links to one file: a loader that opens two of the names then has one image of it, with one memory. A test that
//! is linked with this crate besides has another: what it wants of the double that is loaded it takes from there, by name
//! (`gpu_double_counts`, `gpu_double_set`).
//!
//! ```text
//! cuda       devices, contexts, memory, streams, events, and Disco's own kernels
//! hip        the same devices by HIP's functions: a current device for each thread, no contexts
//! nccl       communicators, collectives, sends and receives; what RCCL spells otherwise, and its own
//! nvml       links between GPUs, of machines that are known
//! nvrtc      a compiler that compiles nothing, which a test names by file
//! settings   variables that say how it behaves, and what is to go wrong
//! counts     what it was asked to do, and what was not given back
//! controls   C functions of the double itself
//! folder     where loaders find it
//! ```
//!
//! # What it is strict about
//!
//! Where the real libraries hang, or give wrong numbers some of the time, the double refuses and says why, all of the time:
//!
//! - ranks whose collectives differ, and sends that differ from their receives: every rank's asynchronous error is
//!   `ncclInvalidUsage`;
//! - buffers of a call that overlap other than in place: `ncclInvalidArgument`; of calls in a group: `ncclInvalidUsage`, or, among
//!   sends and receives, `ncclInvalidArgument`;
//! - memory that is no allocation of the communicator's device, or that ends before the buffer: `ncclInvalidArgument`;
//! - two threads in calls of one communicator, and calls of one that is finalized: `ncclInvalidUsage`; of one that is in
//!   progress: `ncclInvalidArgument`;
//! - two ranks on one device, unless the version is 2.30.3 or later and `NCCL_MULTI_RANK_GPU_ENABLE=1`, and a unique id that was used before: `ncclInvalidUsage`;
//! - work on memory that was freed since: `CUDA_ERROR_ILLEGAL_ADDRESS`, which stays until the device's context is released;
//!   by HIP `hipErrorIllegalAddress`, which stays for as long as the process lives;
//! - work on memory of another process that was closed since, or that the other process has freed: the same; so is a word of another
//!   device's memory that a stream writes or waits for without access to it;
//! - buffers in a pool of device memory that a peer's device may not touch: `ncclInvalidArgument`. Ranks of a process have access to
//!   each other's memory from the first communicator on, and the library may read a peer's buffer in its place;
//! - launches whose parameters say that there is memory where there is none, or none that the device may touch: the same; of other
//!   shapes than kernels are made for: `CUDA_ERROR_INVALID_VALUE`;
//! - words that a stream is to write by HIP into coarse-grained memory (`hipMalloc`) of another device, which a wait there may never
//!   see: `hipErrorInvalidValue`;
//! - copies by HIP between other places than their kind says, or from the host to the host: `hipErrorInvalidValue`.
//!
//! `cuMemFree`, `cuMemFreeHost` and HIP's frees wait for all work of the device and of the devices that have access to its memory or
//! whose memory it has access to. Frees of a pool (`cuMemFreeAsync`, `hipFreeAsync`) are work of a stream, and wait for nothing.
//!
//! A launch of a communicator that does not block is in progress at first, each one since 2.22.3. The first collective (since
//! 2.22.3), and the first send to or receive from a rank, connects: it waits for the launches of those ranks, in the call if the
//! communicator blocks. `ncclCommAbort` ends such a wait, and the work of the communicator; in a group it frees nothing before the end of the group. The place of a
//! child is null until its split is done. `ncclCommAbort` and `ncclCommDestroy` return at once for all ranks of a process but the
//! last, which waits for the work of all. Until a rank's work is called off it may write to the outputs of all ranks that have come to
//! its collective, those of aborted ranks as well; memory of them that was freed is then an illegal address, that of a pool if the pool
//! has given out any since. `ncclCommFinalize` waits for other ranks since 2.31.
//!
//! The ordinary streams of a device share hardware queues, as on a real device: stream `k` of a device, counted from 0 in the order of
//! creation, has queue `k` modulo `CUDA_DEVICE_MAX_CONNECTIONS` (by HIP `GPU_MAX_HW_QUEUES`). A queue dispatches work in the order in
//! which it was submitted to any of its streams. A wait for a word or for an event is dispatched when it is over, so until then it
//! holds up all later work of its queue: a stream that is to write the awaited word may never come to that. Kernels, copies, writes
//! of words, records of events and units of NCCL are dispatched when they start, which is when the work before them in their stream
//! is done: kernels of two streams of one queue run at the same time. A stream with a priority above the default, and the default
//! stream, have a queue of their own.
//!
//! Work happens when its stream's thread comes to it. Asynchronous copies read and write pinned memory (`cuMemHostAlloc`,
//! `hipHostMalloc`) then; they have read other host memory when they return, and wait for the stream to write it. Fresh memory is
//! full of 0xA5. A send is not done before its receive has begun, even of nothing.
//!
//! # Memory of several processes
//!
//! Device memory is in files in memory, one for each device, which another process of the double may open (`cuIpcOpenMemHandle_v2`,
//! `hipIpcOpenMemHandle`): both see what the other writes. It opens them through `/proc`, as far as the two may look at each other
//! there. Device 0 of one process is device 0 of all. A handle of a process that has ended, or has freed the memory, is
//! `CUDA_ERROR_INVALID_HANDLE`; what is open stays when its process ends.
//!
//! # Communicators of several processes
//!
//! Ranks of a communicator are threads of one process, or of any processes of a machine and a network namespace that may open each
//! other's memory as above, memory of pools too. The process that has made the unique id is the host of the communicator and of all
//! that are split off it: the others connect to it, by a socket whose name is in the id, and threads in the host do on their memory
//! what NCCL's kernels would do. So the double is as strict among processes as among threads.
//!
//! A process that ends without leaving its communicators has aborted them, for its peers: their work waits until they abort, unless
//! `GPU_DOUBLE_REMOTE_ERRORS=1`. So has a host of which some rank is. If the host has no rank of a communicator, its ranks have
//! `ncclSystemError` when it ends; ranks that are joining or splitting have `ncclRemoteError`. A host that exits waits up to 5 s until the
//! other processes have ended their communicators.
//!
//! Faults, counts and variables are each process's own.
//!
//! # Kernels
//!
//! Every module has those of `disco-nccl`, by their names, and no others: what is loaded must begin as an object file does, and is not
//! looked at further. They do to memory what the real ones do, handshakes in other processes' memory among it, but one block after the
//! other: nobody may need that two blocks of a launch are under way at once.
//!
//! # Captures and graphs
//!
//! Calls on a captured stream (`cuStreamBeginCapture_v2`, `hipStreamBeginCapture`) add nodes to a graph: copies on devices and to and from
//! pinned memory, fills, words, kernels, and units of NCCL. Other streams join the capture by events. A launch runs the nodes one after
//! the other in the order of the capture. Each launch makes a new unit of NCCL, behind all earlier units of the communicator.
//! `ncclCommFinalize`, `ncclCommDestroy` and `ncclCommAbort` complete only after all graphs with units of the communicator are destroyed.
//! `cuGraphExecDestroy` does not wait, and running launches complete.
//!
//! A call that is not allowed in a capture returns the driver's code and invalidates the capture, whose end returns
//! `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`:
//!
//! | call | code |
//! |---|---|
//! | allocations and frees of device or pinned memory, queries of events, calls that wait for the device, modules, memory of other processes; unless the capture or the thread is relaxed, and in other threads only of a global capture | 900 `STREAM_CAPTURE_UNSUPPORTED` |
//! | a query of the captured stream or a wait for it, in all modes; the default stream | 900 |
//! | allocations and frees of a pool on the captured stream, and copies of host memory that is not pinned: the driver would make nodes of them | 900 |
//! | a query of an event that was recorded last in a capture | 907 `CAPTURED_EVENT` |
//! | a wait for an event from outside or of another capture; an end with streams that have not joined again, on another stream or thread | 905, 902; 904, 903, 908 |
//!
//! # What it has not
//!
//! Ranks of several machines. A group has no init, split, finalize or destroy in it, and one stream a
//! communicator. `ncclAllToAllv` is a group of sends and receives, and counts as one call. Releasing the last hold on a context
//! destroys nothing, so that leaks are counted; modules are not. Events measure no time. Ranks with NaN among numbers of which they
//! want the largest get a number, as with `fmaxf`. Graphs are made by captures only. Two launches of one graph on two streams may run at
//! once.
//!
//! # Variables
//!
//! Read when the first function is called that needs any. `gpu_double_set(name, value)` changes one later; the number of devices
//! is taken by the first `cuInit` that succeeds, or the first of HIP's functions that needs a device; the others each time they
//! matter.
//!
//! | variable | default | |
//! |---|---|---|
//! | `GPU_DOUBLE_DEVICES` | 4 | devices |
//! | `GPU_DOUBLE_MEMORY` | 1073741824 | bytes of each device; more are out of memory |
//! | `GPU_DOUBLE_NCCL_VERSION` | 22809 | what `ncclGetVersion` says; every function is there all the same |
//! | `GPU_DOUBLE_DRIVER` | 13000 | what `cuDriverGetVersion` says |
//! | `GPU_DOUBLE_HIP` | 60342131 | what `hipRuntimeGetVersion` and `hipDriverGetVersion` say: this is 6.3.42131 |
//! | `GPU_DOUBLE_INIT` | 0 | what `cuInit` returns, and HIP's functions that need a device: 100 no device (`hipInit`: 101), 803 driver mismatch |
//! | `GPU_DOUBLE_CONNECT` | 0 | which launches of a communicator that does not block are in progress at first: 0 those of the version, 1 those that connect, 2 all |
//! | `GPU_DOUBLE_DELAY_US` | 0 | microseconds that each piece of stream work, and of background work, takes at least |
//! | `GPU_DOUBLE_POLL_US` | 0 | microseconds that a stream's thread looks for work before it sleeps: who gives it some need not wake it |
//! | `GPU_DOUBLE_REMOTE_ERRORS` | 0 | 1: 10 ms after an abort, or the end of a rank's process, peers' asynchronous error is `ncclRemoteError` |
//! | `GPU_DOUBLE_NVLINK` | pcie | how NVML says that GPUs are linked: `pcie` none, `dgx1` eight V100 in a hybrid cube mesh, `broken` the same with one end of a link down, `dgx2` sixteen V100 on switches, `h100` eight H100 on switches; of these, CUDA shows the first `GPU_DOUBLE_DEVICES` |
//! | `GPU_DOUBLE_PEER_ACCESS` | 1 | 0: no device can have access to another's memory |
//! | `GPU_DOUBLE_PEER_FREES` | 1 | 0: a free waits for its own device alone, which the real driver does not promise |
//! | `GPU_DOUBLE_PRIORITIES` | 1 | 0: all streams have the default priority |
//! | `GPU_DOUBLE_FAULTS` | | what is to go wrong, see below |
//! | `CUDA_DEVICE_MAX_CONNECTIONS` | 8 | hardware queues that ordinary streams of a device share by CUDA; more than the real driver's 32 are possible |
//! | `GPU_MAX_HW_QUEUES` | 4 | the same by HIP |
//! | `GPU_STREAMOPS_CP_WAIT` | 0 | 1: `hipStreamWaitValue32` refuses words in other memory than signal memory |
//!
//! One that cannot be understood ends the process.
//!
//! # Faults
//!
//! A list of `function:rank:n=action` with commas between: the n-th call, from 1, of the function by the rank. For the rank `*`,
//! each rank's n-th call. The rank is that in the call's communicator: the parent's of a split, the first communicator's of
//! `ncclGroupEnd`, and each one's there. For functions of CUDA, HIP and NVML it is the number of the device.
//!
//! | action | |
//! |---|---|
//! | a number | the call returns this code, and does nothing |
//! | `async:CODE` | the call succeeds; when its work is reached the communicator has this error, and the work never completes |
//! | `hang` | the call succeeds; its work never completes |
//! | `block` | the call does not return before the communicator is aborted (`ncclInternalError`), or a minute has passed (`ncclSystemError`) |
//!
//! What never completes ends with `ncclCommAbort`. NCCL functions with faults: all that communicate, `ncclGroupEnd`,
//! `ncclCommInitRank`, `ncclCommInitRankConfig`, `ncclCommSplit`, `ncclCommFinalize`, `ncclCommDestroy`; `ncclMemAlloc` takes a
//! CUDA code. A fault of `ncclAllToAll` is one of `ncclAlltoAll` too; a call of `ncclAllToAllv` is one of `ncclSend` and
//! `ncclRecv`, to and from each rank, and of `ncclGroupEnd` besides. Functions of CUDA and HIP take numbers: all of contexts,
//! streams, events and memory, and `hipSetDevice`, but for those that free or destroy; of modules, of access to peers, of memory of
//! other processes, and of words that streams write, those that give back as well; of captures and graphs, but for queries of a capture
//! and those that destroy; so do NVML's, but for `nvmlShutdown` (`nvmlInit_v2` is device 0's).

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
