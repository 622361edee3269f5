//! Copies between the host and a device, which go in pieces through a few chunks of pinned memory. Several threads run
//! copies of 4 MiB or more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use disco::nccl::cuda::Cuda;
use disco::{
    CommunicatorExt as _, DType, Device, DeviceApi as _, DeviceKind, Error, Queue, Reduction, Tensor, WorkerContext,
};

use disco_conformance::waiting::poll;

use crate::alone::text;
use crate::costs::threads;
use crate::memory::run_on_two;
use crate::on_the_double;

pub(crate) const MIB: usize = 1 << 20;
pub(crate) const SYNCHRONIZE_DEADLINE: Duration = Duration::from_secs(30);

pub(crate) fn queue() -> Box<dyn Queue> {
    Cuda.bind(Device::new(DeviceKind::Cuda, 0)).unwrap()
}

pub(crate) fn device_tensor(queue: &mut dyn Queue, bytes: usize) -> Tensor {
    Tensor::from_storage(queue.alloc(bytes).unwrap(), DType::U8, [bytes as i64]).unwrap()
}

pub(crate) fn host_tensor(bytes: &[u8]) -> Tensor {
    Tensor::from_slice(bytes, [bytes.len() as i64]).unwrap()
}

fn zeros(bytes: usize) -> Tensor {
    Tensor::zeros(DType::U8, [bytes as i64]).unwrap()
}

/// A tensor on the device with these bytes.
pub(crate) fn on_device(queue: &mut dyn Queue, bytes: &[u8]) -> Tensor {
    let device = device_tensor(queue, bytes.len());
    queue.copy_in(&device, &host_tensor(bytes)).unwrap();
    device
}

pub(crate) fn assert_has(tensor: &Tensor, bytes: &[u8]) {
    let found = tensor.to_vec::<u8>().unwrap();
    // Without optimisation, only this comparison is fast.
    if found != bytes {
        let difference = found.iter().zip(bytes).position(|(found, expected)| found != expected);
        panic!("{tensor} differs from byte {difference:?} on");
    }
}

/// Bytes that repeat after a prime number of bytes, so that no part can take the place of another one.
pub(crate) fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    const PERIOD: usize = 100_003;
    let mut all: Vec<u8> = (0..PERIOD.min(bytes)).map(|at| (at * 7 + at / 4096 + seed) as u8).collect();
    while all.len() < bytes {
        all.extend_from_within(..all.len().min(bytes - all.len()));
    }
    all
}

on_the_double!(copies_take_little_pinned_memory, [], {
    let mut queue = queue();
    let device = device_tensor(&mut *queue, 64 * MIB);
    let host = Tensor::zeros(DType::U8, [(64 * MIB) as i64]).unwrap();
    let before = crate::costs::counts().allocations;
    for _ in 0..3 {
        queue.copy_in(&device, &host).unwrap();
        queue.copy_out(&host, &device).unwrap();
        queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    }
    // Two for each of up to eight threads, and more while the double's stream thread gets no CPU time.
    let chunks = crate::costs::counts().allocations - before;
    assert!((1..=96).contains(&chunks), "{chunks} chunks for 384 pieces");
});

/// Copies to windows of one host tensor, of which later ones overlap earlier ones, and expects that later ones win.
fn overlap(queue: &mut dyn Queue, to: &Tensor) -> Vec<u8> {
    let all = to.byte_len();
    let mut expected = vec![0; all];
    let windows = [
        (0, 10),
        (0, all),
        (MIB, 100),
        (MIB + 50, 4 * MIB + 50),
        (3 * MIB, 1000),
        (all - 5 * MIB, 5 * MIB),
        (all - 9, 9),
    ];
    for (seed, (offset, bytes)) in windows.into_iter().enumerate() {
        let contents = pattern(bytes, 100 + seed);
        let device = on_device(queue, &contents);
        queue.copy_out(&to.window(offset, [bytes as i64]).unwrap(), &device).unwrap();
        expected[offset..offset + bytes].copy_from_slice(&contents);
    }
    expected
}

on_the_double!(a_large_copy_to_a_viewed_tensor_is_busy_and_all_others_are_complete, [], {
    let mut queue = queue();
    let contents = pattern(9 * MIB + 1, 1);
    let device = on_device(&mut *queue, &contents);
    let (viewed, before, after) = (zeros(contents.len()), zeros(contents.len()), zeros(contents.len()));
    queue.copy_out(&before, &device).unwrap();
    let view = viewed.bytes().unwrap();
    queue.copy_out(&viewed, &device).unwrap();
    queue.copy_out(&after, &device).unwrap();
    assert!(matches!(queue.synchronize(SYNCHRONIZE_DEADLINE), Err(Error::Busy(_))));
    drop(view);
    assert_has(&before, &contents);
    assert_has(&after, &contents);
    assert_has(&viewed, &vec![0; contents.len()]);
    // A view that ends before the synchronisation only delays the copy.
    let view = viewed.bytes().unwrap();
    queue.copy_out(&viewed, &device).unwrap();
    drop(view);
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&viewed, &contents);
});

/// Set while rank 1 is to wait.
pub(crate) static IS_PEER_LATE: AtomicBool = AtomicBool::new(true);

/// Runs `copies` on rank 0 while its stream waits for rank 1 in a collective, which rank 1 enters once `copies` clears
/// [`IS_PEER_LATE`].
pub(crate) fn before_the_peer_comes(
    ctx: &mut WorkerContext,
    copies: impl FnOnce(&mut WorkerContext) -> disco::Result<()>,
) -> disco::Result<()> {
    let tensor = ctx.empty(DType::F32, [8])?;
    // Connects the ranks: the next launch returns at once.
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    ctx.comm()?.synchronize()?;
    if ctx.worker().index() == 1 {
        let has_come = || (!IS_PEER_LATE.load(Ordering::SeqCst)).then_some(());
        poll(SYNCHRONIZE_DEADLINE, has_come).expect("rank 0 copies");
    }
    ctx.comm()?.all_reduce_in_place(&tensor, Reduction::Sum)?;
    if ctx.worker().index() == 0 {
        copies(ctx)?;
    }
    ctx.comm()?.synchronize()
}

fn large_copies(ctx: &mut WorkerContext) -> disco::Result<()> {
    let contents = pattern(21 * MIB + 77, 3);
    let (device, source) = (ctx.empty(DType::U8, [contents.len() as i64])?, host_tensor(&contents));
    let (viewed, back, to) = (zeros(contents.len()), zeros(contents.len()), zeros(12 * MIB + 5));
    let view = viewed.bytes()?;
    ctx.queue().copy_in(&device, &source)?;
    source.bytes_mut()?.fill(0);
    ctx.queue().copy_out(&viewed, &device)?;
    ctx.queue().copy_out(&back, &device)?;
    let expected = overlap(ctx.queue(), &to);
    assert_has(&back, &vec![0; contents.len()]);
    IS_PEER_LATE.store(false, Ordering::SeqCst);
    assert!(matches!(ctx.queue().synchronize(SYNCHRONIZE_DEADLINE), Err(Error::Busy(_))));
    drop(view);
    assert_has(&back, &contents);
    assert_has(&to, &expected);
    assert_has(&viewed, &vec![0; contents.len()]);
    ctx.queue().copy_out(&viewed, &device)?;
    ctx.queue().synchronize(SYNCHRONIZE_DEADLINE)?;
    assert_has(&viewed, &contents);
    Ok(())
}

fn large_copies_before_the_peer_comes(ctx: &mut WorkerContext) -> disco::Result<()> {
    before_the_peer_comes(ctx, large_copies)
}

disco::register_function!("tests.copies.large", large_copies_before_the_peer_comes);

on_the_double!(large_copies_behind_a_stream_that_waits_for_a_peer_return_and_are_complete_later, [], {
    run_on_two("tests.copies.large");
});

/// Asserts that a copy fails at the function, that no thread of them is left, and that later copies arrive.
fn assert_copies_fail_once(function: &str) {
    let mut queue = queue();
    let contents = pattern(16 * MIB + 1, 9);
    let (device, source) = (device_tensor(&mut *queue, contents.len()), host_tensor(&contents));
    let back = zeros(contents.len());
    let outcome = queue.copy_in(&device, &source).and_then(|()| queue.copy_out(&back, &device));
    let error = text(outcome);
    assert!(error.contains(function), "{error}");
    poll(SYNCHRONIZE_DEADLINE, || (threads("disco-ccl-copy") == 0).then_some(())).expect("the threads of the copy end");
    queue.copy_in(&device, &source).unwrap();
    queue.copy_out(&back, &device).unwrap();
    queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
    assert_has(&back, &contents);
}

on_the_double!(
    a_copy_to_the_device_that_fails_in_one_thread_returns_the_error,
    ["GPU_DOUBLE_FAULTS" = "cuMemcpyHtoDAsync_v2:0:7=1"],
    {
        assert_copies_fail_once("cuMemcpyHtoDAsync");
    }
);

on_the_double!(
    a_copy_to_the_host_that_fails_in_one_thread_returns_the_error,
    ["GPU_DOUBLE_FAULTS" = "cuMemcpyDtoHAsync_v2:0:7=1"],
    {
        assert_copies_fail_once("cuMemcpyDtoHAsync");
    }
);

on_the_double!(
    a_large_copy_whose_event_is_not_recorded_returns_the_error,
    ["GPU_DOUBLE_FAULTS" = "cuEventRecord:0:5=1"],
    {
        assert_copies_fail_once("cuEventRecord");
    }
);

on_the_double!(a_large_copy_without_pinned_memory_returns_the_error, ["GPU_DOUBLE_FAULTS" = "cuMemHostAlloc:0:2=2"], {
    assert_copies_fail_once("cuMemHostAlloc");
});
