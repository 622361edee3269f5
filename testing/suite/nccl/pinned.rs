//! Copies of tensors in pinned memory, which are single copies of the driver.

#![allow(unsafe_code, reason = "a stream that waits for the host")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use disco::nccl::cuda::Cuda;
use disco::nccl::cudarc::driver::sys;
use disco::nccl::disco_ccl;
use disco::rccl::Hip;
use disco::tensor::Storage;
use disco::{Builder, DType, Device, DeviceApi as _, DeviceKind, Error, Queue, Tensor, WorkerContext, block_on};
use disco_conformance::waiting::poll;

use crate::alone::{session, text, works_again};
use crate::copies::{
    IS_PEER_LATE, MIB, SYNCHRONIZE_DEADLINE, assert_has, before_the_peer_comes, device_tensor, host_tensor, on_device,
    pattern, queue,
};
use crate::costs::{becomes, check_nothing_is_left, check_nothing_is_left_of, counts, threads};
use crate::memory::run_on_two;
use crate::on_the_double;
use crate::p2p::call;

/// Limit of calls that do not wait for the stream.
const CALL_LIMIT: Duration = Duration::from_secs(2);

fn pinned(queue: &mut dyn Queue, bytes: &[u8]) -> Tensor {
    let tensor = Tensor::from_storage(queue.alloc_pinned(bytes.len()).unwrap(), DType::U8, [bytes.len() as i64]);
    let tensor = tensor.unwrap();
    tensor.write(bytes).unwrap();
    tensor
}

fn is_busy<T>(outcome: disco::Result<T>) -> bool {
    matches!(outcome, Err(Error::Busy(_)))
}

/// A word in pinned memory for which a stream waits.
struct Gate(Arc<Storage>);

impl Gate {
    /// Holds the stream until [`Gate::open`].
    fn close(queue: &mut dyn Queue) -> Self {
        let word = queue.alloc_pinned(4).unwrap();
        let address = word.pointer().addr() as sys::CUdeviceptr;
        // SAFETY: the word lives until the test ends.
        let waits = unsafe { sys::cuStreamWaitValue32_v2(queue.raw().cast(), address, 1, 0) };
        assert_eq!(waits, sys::CUresult::CUDA_SUCCESS);
        Self(word)
    }

    fn open(&self) {
        // SAFETY: the memory is a word, which only this function and the stream access.
        unsafe { AtomicU32::from_ptr(self.0.pointer().cast()) }.store(1, Ordering::SeqCst);
    }
}

/// Waits until the driver says that the stream is done, without a call of the queue.
fn wait_for_the_stream(queue: &dyn Queue) {
    let stream = queue.raw().cast();
    // SAFETY: the queue owns the stream.
    let is_done = || (unsafe { sys::cuStreamQuery(stream) } == sys::CUresult::CUDA_SUCCESS).then_some(());
    poll(SYNCHRONIZE_DEADLINE, is_done).expect("the stream is done");
}

on_the_double!(
    a_copy_of_a_pinned_tensor_is_one_call_of_the_driver,
    ["GPU_DOUBLE_FAULTS" = "cuMemcpyHtoDAsync_v2:0:2=1,cuMemcpyDtoHAsync_v2:0:2=1"],
    {
        let mut queue = queue();
        let contents = pattern(64 * MIB, 1);
        let (device, src) = (device_tensor(&mut *queue, contents.len()), pinned(&mut *queue, &contents));
        let dst = pinned(&mut *queue, &vec![0; contents.len()]);
        let before = counts().allocations;
        queue.copy_in(&device, &src).unwrap();
        queue.copy_out(&dst, &device).unwrap();
        assert_eq!(counts().allocations, before, "copies take no chunks");
        queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
        assert_has(&dst, &contents);
        // The second call of each function fails, so each copy was one call.
        assert!(text(queue.copy_in(&device, &src)).contains("cuMemcpyHtoDAsync"));
        assert!(text(queue.copy_out(&dst, &device)).contains("cuMemcpyDtoHAsync"));
        // The copies may have begun before the errors.
        assert!(is_busy(src.bytes_mut()) && is_busy(dst.bytes()));
        queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
        assert!(src.bytes_mut().is_ok() && dst.bytes_mut().is_ok());
    }
);

on_the_double!(a_copy_whose_event_is_not_recorded_keeps_its_claim, ["GPU_DOUBLE_FAULTS" = "cuEventRecord:0:2=1"], {
    let mut queue = queue();
    let (device, dst) = (on_device(&mut *queue, &[7]), pinned(&mut *queue, &[0]));
    queue.copy_out(&dst, &device).unwrap();
    assert!(text(queue.copy_out(&dst, &device)).contains("cuEventRecord"));
    wait_for_the_stream(&*queue);
    queue.copy_in(&device, &host_tensor(&[8])).unwrap();
    assert!(is_busy(dst.bytes()), "no event shows that the stream has passed the copy");
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&dst, &[7]);
});

on_the_double!(a_pinned_tensor_is_busy_until_the_synchronisation, [], {
    let mut queue = queue();
    let contents = pattern(5 * MIB, 2);
    let (device, src) = (device_tensor(&mut *queue, contents.len()), pinned(&mut *queue, &contents));
    let dst = pinned(&mut *queue, &vec![0; contents.len()]);
    let gate = Gate::close(&mut *queue);
    queue.copy_in(&device, &src).unwrap();
    queue.copy_out(&dst, &device).unwrap();
    assert_has(&src, &contents);
    assert!(is_busy(src.bytes_mut()), "the stream reads the source");
    assert!(is_busy(dst.bytes()), "the stream writes the target");
    assert!(matches!(queue.synchronize(Duration::from_millis(10)), Err(Error::Deadline { .. })));
    assert!(is_busy(src.bytes_mut()) && is_busy(dst.bytes()), "the stream is not done");
    gate.open();
    wait_for_the_stream(&*queue);
    assert!(is_busy(dst.bytes()), "the queue has not seen that the stream is done");
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&dst, &contents);
    src.bytes_mut().unwrap().fill(0);
});

on_the_double!(a_passed_event_ends_the_claims_of_copies_before_it_and_of_no_others, [], {
    let mut queue = queue();
    let device = on_device(&mut *queue, &[1, 2, 3]);
    let (first, second) = (pinned(&mut *queue, &[0; 3]), pinned(&mut *queue, &[0; 3]));
    let before = queue.record().unwrap();
    let gate = Gate::close(&mut *queue);
    queue.copy_out(&first, &device).unwrap();
    let between = queue.record().unwrap();
    queue.copy_out(&second, &device).unwrap();
    let is_passed = |queue: &mut dyn Queue, event| {
        poll(SYNCHRONIZE_DEADLINE, || queue.poll(event).unwrap().then_some(())).expect("the stream passes the event");
    };
    is_passed(&mut *queue, before);
    assert!(!queue.poll(between).unwrap());
    assert!(is_busy(first.bytes()) && is_busy(second.bytes()));
    gate.open();
    is_passed(&mut *queue, between);
    assert_has(&first, &[1, 2, 3]);
    assert!(is_busy(second.bytes()), "its copy is behind the event");
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&second, &[1, 2, 3]);
});

on_the_double!(the_next_copy_ends_the_claims_of_copies_that_the_stream_has_passed, [], {
    let mut queue = queue();
    let device = on_device(&mut *queue, &[1, 2, 3]);
    let (first, second) = (pinned(&mut *queue, &[0; 3]), pinned(&mut *queue, &[0; 3]));
    queue.copy_out(&first, &device).unwrap();
    wait_for_the_stream(&*queue);
    let gate = Gate::close(&mut *queue);
    queue.copy_out(&second, &device).unwrap();
    assert_has(&first, &[1, 2, 3]);
    queue.copy_in(&device, &host_tensor(&[4; 3])).unwrap();
    assert!(is_busy(second.bytes()));
    gate.open();
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&second, &[1, 2, 3]);
});

on_the_double!(copies_of_windows_of_one_pinned_tensor_share_a_claim, [], {
    let mut queue = queue();
    let (a, b) = (on_device(&mut *queue, &[1; 4]), on_device(&mut *queue, &[2; 4]));
    let all = pinned(&mut *queue, &[9; 12]);
    let window = |start| all.window(start, [4]).unwrap();
    let gate = Gate::close(&mut *queue);
    let view = all.bytes().unwrap();
    queue.copy_in(&b, &window(0)).unwrap();
    assert!(is_busy(queue.copy_out(&window(1), &a)), "the program reads");
    drop(view);
    assert!(all.bytes().is_ok(), "the stream still only reads");
    queue.copy_out(&window(1), &a).unwrap();
    queue.copy_out(&window(6), &a).unwrap();
    queue.copy_in(&a, &window(3)).unwrap();
    queue.copy_out(&window(8), &b).unwrap();
    assert!(is_busy(all.bytes()));
    gate.open();
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&all, &[9, 1, 1, 1, 1, 9, 1, 1, 9, 9, 9, 9]);
    let back = pinned(&mut *queue, &[0; 4]);
    queue.copy_out(&back, &a).unwrap();
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&back, &[1, 1, 9, 1]);
    let writes = all.bytes_mut().unwrap();
    assert!(is_busy(queue.copy_in(&a, &window(0))) && is_busy(queue.copy_out(&window(0), &a)));
    drop(writes);
});

on_the_double!(pinned_memory_lives_until_its_copies_are_over, [], {
    let mut queue = queue();
    let contents = pattern(3 * MIB, 3);
    let device = device_tensor(&mut *queue, contents.len());
    let gate = Gate::close(&mut *queue);
    let before = counts().allocations;
    let src = pinned(&mut *queue, &contents);
    queue.copy_in(&device, &src).unwrap();
    drop(src);
    assert_eq!(counts().allocations, before + 1);
    gate.open();
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    becomes("allocations", || counts().allocations, before);
    let back = pinned(&mut *queue, &vec![0; contents.len()]);
    queue.copy_out(&back, &device).unwrap();
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&back, &contents);
});

on_the_double!(a_dropped_queue_keeps_its_claims_until_its_copies_are_over, [], {
    let mut queue = queue();
    let contents = pattern(3 * MIB, 4);
    let (device, dst) = (on_device(&mut *queue, &contents), pinned(&mut *queue, &vec![0; contents.len()]));
    let src = pinned(&mut *queue, &contents);
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    let gate = Gate::close(&mut *queue);
    queue.copy_out(&dst, &device).unwrap();
    queue.copy_in(&device, &src).unwrap();
    drop((src, device));
    let start = Instant::now();
    drop(queue);
    assert!(start.elapsed() < CALL_LIMIT, "the drop waits for the stream");
    let free = poll(Duration::from_millis(50), || (!is_busy(dst.bytes())).then_some(()));
    assert_eq!(free, None, "the stream has not passed the copy");
    gate.open();
    becomes("the claim of the target", || is_busy(dst.bytes()), false);
    assert_has(&dst, &contents);
    drop((dst, gate));
    check_nothing_is_left();
});

on_the_double!(pinned_memory_that_is_dropped_during_a_capture_is_freed_after_it, [], {
    let mut queue = queue();
    let (a, b) = (on_device(&mut *queue, &[1; 4]), on_device(&mut *queue, &[2; 4]));
    let back = pinned(&mut *queue, &[0; 4]);
    let before = counts().allocations;
    let dropped = pinned(&mut *queue, &[3; 4]);
    let graph = disco_ccl::Queue::of(&mut *queue, DeviceKind::Cuda).unwrap().capture(|queue| {
        let queue: &mut dyn Queue = queue;
        for refused in [queue.copy_in(&a, &back), queue.copy_out(&back, &a), queue.alloc_pinned(4).map(drop)] {
            assert!(text(refused).contains("the stream is being captured"));
        }
        drop(dropped);
        queue.copy_within(&a, &b)
    });
    graph.unwrap().launch().unwrap();
    queue.copy_out(&back, &a).unwrap();
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&back, &[2; 4]);
    becomes("allocations", || counts().allocations, before);
});

on_the_double!(pinned_memory_is_not_freed_if_a_communicator_is_made_before_the_stream_is_idle, [], {
    let mut queue = Cuda.bind(Device::new(DeviceKind::Cuda, 3)).unwrap();
    let gate = Gate::close(&mut *queue);
    drop(queue.alloc_pinned(12_345).unwrap());
    let session = session(2);
    works_again(&session);
    gate.open();
    becomes("background threads", || threads("disco-ccl-reap"), 0);
    let before = counts().allocations;
    let again = queue.alloc_pinned(12_345).unwrap();
    assert_eq!(counts().allocations, before, "the dropped memory is used again");
    drop((session, gate, again, queue));
    check_nothing_is_left();
});

on_the_double!(
    memory_that_another_device_has_pinned_is_pinned,
    ["GPU_DOUBLE_FAULTS" = "cuMemcpyHtoDAsync_v2:0:2=1"],
    {
        let (mut queue, mut other) = (queue(), Cuda.bind(Device::new(DeviceKind::Cuda, 1)).unwrap());
        let contents = pattern(2 * MIB, 5);
        let (src, device) = (pinned(&mut *other, &contents), device_tensor(&mut *queue, contents.len()));
        let dst = pinned(&mut *other, &vec![0; contents.len()]);
        let gate = Gate::close(&mut *queue);
        queue.copy_in(&device, &src).unwrap();
        queue.copy_out(&dst, &device).unwrap();
        assert!(is_busy(src.bytes_mut()) && is_busy(dst.bytes()));
        let far = device_tensor(&mut *other, contents.len());
        assert!(is_busy(other.copy_out(&src, &far)), "another queue reads it");
        gate.open();
        queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
        assert_has(&dst, &contents);
    }
);

on_the_double!(hip_copies_pinned_tensors_by_one_call, ["GPU_DOUBLE_FAULTS" = "hipMemcpyAsync:0:3=1"], {
    {
        let mut queue = Hip.bind(Device::new(DeviceKind::Rocm, 0)).unwrap();
        let contents = pattern(8 * MIB, 6);
        let (src, device) = (pinned(&mut *queue, &contents), device_tensor(&mut *queue, contents.len()));
        let dst = pinned(&mut *queue, &vec![0; contents.len()]);
        assert!(src.device().is_host());
        queue.copy_in(&device, &src).unwrap();
        queue.copy_out(&dst, &device).unwrap();
        assert!(is_busy(dst.bytes()));
        queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
        assert_has(&dst, &contents);
        assert!(text(queue.copy_in(&device, &src)).contains("hipMemcpyAsync"), "the third call fails");
    }
    check_nothing_is_left_of("libamdhip64.so.6");
});

on_the_double!(memory_that_cuda_has_pinned_is_ordinary_memory_for_hip, [], {
    let (mut cuda, mut hip) = (queue(), Hip.bind(Device::new(DeviceKind::Rocm, 0)).unwrap());
    let (src, dst) = (pinned(&mut *cuda, &[1, 2, 3]), pinned(&mut *cuda, &[0; 3]));
    let device = device_tensor(&mut *hip, 3);
    hip.copy_in(&device, &src).unwrap();
    src.bytes_mut().unwrap().fill(0);
    hip.copy_out(&dst, &device).unwrap();
    hip.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&dst, &[1, 2, 3]);
});

/// Copies pinned tensors while the stream waits for a peer.
fn pinned_copies(ctx: &mut WorkerContext) -> disco::Result<()> {
    let shape = [(12 * MIB) as i64];
    let contents = pattern(12 * MIB, 7);
    let device = ctx.empty(DType::U8, shape)?;
    let start = Instant::now();
    let (src, back, unused) =
        (ctx.empty_pinned(DType::U8, shape)?, ctx.empty_pinned(DType::U8, shape)?, ctx.empty_pinned(DType::U8, shape)?);
    src.write(&contents)?;
    unused.write(&contents)?;
    ctx.queue().copy_in(&device, &src)?;
    ctx.queue().copy_out(&back, &device)?;
    drop((src, unused));
    // The memory of a dropped tensor is used again.
    let zeros = ctx.empty_pinned(DType::U8, shape)?;
    assert!(start.elapsed() < SYNCHRONIZE_DEADLINE / 2, "a call waits for the peer");
    assert_has(&zeros, &vec![0; contents.len()]);
    assert!(is_busy(back.bytes()));
    IS_PEER_LATE.store(false, Ordering::SeqCst);
    ctx.queue().synchronize(SYNCHRONIZE_DEADLINE)?;
    assert_has(&back, &contents);
    Ok(())
}

fn pinned_copies_before_the_peer_comes(ctx: &mut WorkerContext) -> disco::Result<()> {
    before_the_peer_comes(ctx, pinned_copies)
}

disco::register_function!("tests.pinned.copies", pinned_copies_before_the_peer_comes);

on_the_double!(copies_of_pinned_tensors_behind_a_stream_that_waits_for_a_peer_return, [], {
    run_on_two("tests.pinned.copies");
});

/// Pinned memory of a worker on the host is ordinary memory, and its copies are complete at once.
fn on_the_host(ctx: &mut WorkerContext) -> disco::Result<()> {
    let (tensor, pinned) = (ctx.empty(DType::U8, [4])?, ctx.empty_pinned(DType::U8, [4])?);
    assert!(pinned.device().is_host());
    assert_has(&pinned, &[0; 4]);
    pinned.write(&[1u8, 2, 3, 4])?;
    ctx.queue().copy_in(&tensor, &pinned)?;
    pinned.bytes_mut()?.fill(0);
    ctx.queue().copy_out(&pinned, &tensor)?;
    assert_has(&pinned, &[1, 2, 3, 4]);
    Ok(())
}

disco::register_function!("tests.pinned.on_the_host", on_the_host);

#[test]
fn a_worker_on_the_host_has_ordinary_memory_in_place_of_pinned_memory() {
    let session = Builder::threads(1).start().unwrap();
    block_on(call(&session, "tests.pinned.on_the_host", ())).unwrap();
}
