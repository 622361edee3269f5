//! Random copies between a device and host tensors, of which every other one is in pinned memory.

use disco::nccl::cuda::Cuda;
use disco::{DType, Device, DeviceApi as _, DeviceKind, Error, Queue, Tensor};

use disco_testing::random::Random;

use crate::alone::on_gpus;
use crate::copies::{MIB, SYNCHRONIZE_DEADLINE, assert_has, device_tensor, pattern};
use crate::on_the_double_or_a_gpu;

const STEPS: usize = 700;
/// Sizes of tensors. Several threads run ordinary copies of 4 MiB or more.
const SIZES: [usize; 4] = [300, 70_000, MIB + 1, 5 * MIB];

/// A tensor, and the bytes that it has once the stream has made all copies so far.
struct Model {
    tensor: Tensor,
    bytes: Vec<u8>,
    /// Whether an ordinary host tensor is the target of a copy since the last synchronisation, which delivers it.
    is_target: bool,
}

/// How often the program could access a pinned tensor, and how often the queue claimed it.
#[derive(Debug, Default)]
struct Tally {
    free: usize,
    busy: usize,
}

struct Mix {
    queue: Box<dyn Queue>,
    random: Random,
    ordinary: Vec<Model>,
    pinned: Vec<Model>,
    on_device: Vec<Model>,
    reads: Tally,
    writes: Tally,
}

impl Model {
    fn new(tensor: Tensor) -> Self {
        let bytes = vec![0; tensor.byte_len()];
        Self { tensor, bytes, is_target: false }
    }

    fn overwrite(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl Mix {
    fn new(seed: u64) -> Self {
        let mut queue = Cuda.bind(Device::new(DeviceKind::Cuda, 0)).unwrap();
        let mut pinned = |bytes| {
            Model::new(Tensor::from_storage(queue.alloc_pinned(bytes).unwrap(), DType::U8, [bytes as i64]).unwrap())
        };
        let pinned = SIZES.map(&mut pinned).into();
        let ordinary = SIZES.map(|bytes| Model::new(Tensor::zeros(DType::U8, [bytes as i64]).unwrap())).into();
        let on_device = [0, 1].map(|_| Model::new(device_tensor(&mut *queue, 5 * MIB))).into();
        Self {
            queue,
            random: Random::new(seed),
            ordinary,
            pinned,
            on_device,
            reads: Tally::default(),
            writes: Tally::default(),
        }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..4 => self.copy_in(),
            4..7 => self.copy_out(),
            7 => self.read(),
            8 => self.write(),
            _ if self.random.below(4) == 0 => self.synchronize(),
            _ => self.poll(),
        }
    }

    /// A random host tensor and whether it is pinned; a window of it, and a place for as many bytes on a device tensor.
    fn window(&mut self) -> (usize, bool, [usize; 4]) {
        let (host, is_pinned, device) =
            (self.random.below(SIZES.len()), self.random.below(2) == 0, self.random.below(2));
        let bytes = 1 + self.random.below(SIZES[host]);
        (
            host,
            is_pinned,
            [self.random.below(SIZES[host] - bytes + 1), bytes, device, self.random.below(5 * MIB - bytes + 1)],
        )
    }

    fn copy_in(&mut self) {
        let (host, is_pinned, [at, bytes, device, to]) = self.window();
        let host = if is_pinned { &self.pinned[host] } else { &self.ordinary[host] };
        if host.is_target {
            return;
        }
        let dst = self.on_device[device].tensor.window(to, [bytes as i64]).unwrap();
        self.queue.copy_in(&dst, &host.tensor.window(at, [bytes as i64]).unwrap()).unwrap();
        self.on_device[device].overwrite(to, &host.bytes[at..at + bytes]);
    }

    fn copy_out(&mut self) {
        let (host, is_pinned, [at, bytes, device, from]) = self.window();
        let host = if is_pinned { &mut self.pinned[host] } else { &mut self.ordinary[host] };
        host.is_target = !is_pinned;
        let src = self.on_device[device].tensor.window(from, [bytes as i64]).unwrap();
        self.queue.copy_out(&host.tensor.window(at, [bytes as i64]).unwrap(), &src).unwrap();
        host.overwrite(at, &self.on_device[device].bytes[from..from + bytes]);
    }

    /// Compares a pinned tensor, unless the stream writes it.
    fn read(&mut self) {
        let host = self.random.below(SIZES.len());
        let Model { tensor, bytes, .. } = &self.pinned[host];
        match tensor.bytes() {
            Ok(view) => assert!(*view == **bytes, "{tensor} has other bytes than its copies have written"),
            Err(error) => {
                assert!(matches!(error, Error::Busy(_)), "{error}");
                self.reads.busy += 1;
                return;
            }
        }
        self.reads.free += 1;
    }

    /// Overwrites a host tensor, unless a copy of it is under way.
    fn write(&mut self) {
        let (host, is_pinned, [at, bytes, ..]) = self.window();
        let contents = pattern(bytes, self.random.below(256));
        let model = if is_pinned { &mut self.pinned[host] } else { &mut self.ordinary[host] };
        if model.is_target {
            return;
        }
        let written = model.tensor.bytes_mut().map(|mut view| view[at..at + bytes].copy_from_slice(&contents));
        let tally = &mut self.writes;
        match written {
            Ok(()) => {
                model.overwrite(at, &contents);
                tally.free += usize::from(is_pinned);
            }
            Err(error) => {
                assert!(is_pinned && matches!(error, Error::Busy(_)), "{error}");
                tally.busy += 1;
            }
        }
    }

    /// Waits for an event, after which no pinned tensor is busy.
    fn poll(&mut self) {
        let event = self.queue.record().unwrap();
        while !self.queue.poll(event).unwrap() {
            std::thread::yield_now();
        }
        assert!(self.pinned.iter().all(|host| host.tensor.bytes_mut().is_ok()));
    }

    fn synchronize(&mut self) {
        self.queue.synchronize(SYNCHRONIZE_DEADLINE).unwrap();
        for host in self.ordinary.iter_mut().chain(&mut self.pinned) {
            assert_has(&host.tensor, &host.bytes);
            host.is_target = false;
        }
    }
}

on_the_double_or_a_gpu!(random_copies_of_pinned_and_ordinary_tensors_arrive_intact, ["GPU_DOUBLE_DELAY_US" = "300"], {
    for seed in 1..=2 {
        let mut mix = Mix::new(seed);
        (0..STEPS).for_each(|_| mix.step());
        mix.synchronize();
        let [reads, writes] = [&mix.reads, &mix.writes];
        let has_both = |tally: &&Tally| tally.free > 5 && tally.busy > 5;
        // The speed of a GPU is not known.
        assert!(on_gpus() || [reads, writes].iter().all(has_both), "{reads:?}, {writes:?}");
    }
});
