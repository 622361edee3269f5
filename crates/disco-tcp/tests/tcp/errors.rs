//! Errors of ranks that do not fit to each other, over connections and through shared memory.

use std::iter;
use std::sync::{Arc, Barrier, OnceLock};
use std::thread;
use std::time::Duration;

use disco_core::activity::Activity;
use disco_core::device_api::{DeviceApi as _, Host};
use disco_core::error::LossCause;
use disco_core::link::{Link, Shared};
use disco_core::store::{SharedStore, StoreCall};
use disco_core::{
    Backend as _, CommunicatorExt as _, ConnectParams, DType, Device, Error, Rank, Reduction, Tensor, Value, World,
};
use disco_tcp::{BACKEND, Communicator};

use crate::ranks::{over_tcp, with_links};

/// Two ranks on two machines, and on one.
const PLACEMENTS: [&[usize]; 2] = [&[0, 1], &[0, 0]];

fn zeros(count: usize) -> Tensor {
    Tensor::zeros(DType::F32, [count]).unwrap()
}

/// The texts of the errors of all ranks, which one rank has found first.
fn errors_of(
    machines: &[usize],
    run: impl Fn(Rank, &mut Communicator) -> disco_core::Result<()> + Sync,
) -> Vec<String> {
    over_tcp(machines, |rank, comm| run(Rank::new(rank as u32), comm).unwrap_err().to_string())
}

#[test]
fn roots_that_differ_are_an_error_of_the_ranks_that_wait_for_each_other() {
    for machines in PLACEMENTS {
        let errors = errors_of(machines, |me, comm| comm.reduce(&zeros(8), Some(&zeros(8)), Reduction::Sum, me));
        for error in errors {
            for (rank, root) in [(0, 0), (1, 1)] {
                let part = format!("rank {rank} called reduce sum f32 x 8, root rank {root}");
                assert!(error.contains(&part), "{error}");
            }
        }
    }
}

#[test]
fn roots_of_broadcasts_that_differ_are_an_error_of_the_next_operation_which_names_both_broadcasts() {
    for machines in PLACEMENTS {
        let errors = errors_of(machines, |me, comm| {
            comm.broadcast(&zeros(8), me)?;
            comm.all_reduce(&zeros(4), &zeros(4), Reduction::Sum)
        });
        for error in errors {
            let both = [0, 1].map(|rank| format!("rank {rank} called broadcast f32 x 8, root rank {rank}"));
            assert!(both.iter().all(|part| error.contains(part)), "{error}");
        }
    }
}

#[test]
fn a_send_to_a_rank_that_has_dropped_its_communicator_says_so() {
    for machines in PLACEMENTS {
        let dropped = Barrier::new(2);
        over_tcp(machines, |rank, comm| {
            if rank == 1 {
                // The other rank's thread drops it after this function.
                dropped.wait();
                return;
            }
            dropped.wait();
            // At first, connections and rings have room, and the bytes in them are discarded.
            let mut send = || {
                thread::sleep(Duration::from_millis(20));
                comm.send(&zeros(256 << 10), Rank::new(1))
            };
            let error = iter::repeat_with(&mut send).find_map(Result::err).unwrap();
            let Error::Lost(loss) = &error else { panic!("{error}") };
            assert!(matches!(loss.cause, LossCause::CommunicatorDropped), "{error}");
        });
    }
}

/// The store of a worker whose node reaches the controller until it is aborted.
#[derive(Debug)]
struct Reached {
    store: Arc<dyn SharedStore>,
    cause: OnceLock<Arc<str>>,
}

impl SharedStore for Reached {
    fn begin(&self, epoch: u64) {
        self.store.begin(epoch);
    }

    fn abort(&self, _: u64, cause: &Arc<str>) {
        _ = self.cause.set(cause.clone());
    }

    fn call(&self, epoch: u64, call: StoreCall, tell: Box<dyn FnOnce(disco_core::Result<Value>) + Send>) {
        match self.cause.get() {
            Some(cause) => tell(Err(Error::Aborted { cause: cause.clone().into() })),
            None => self.store.call(epoch, call, tell),
        }
    }
}

/// Rank 1 can't write the cause into the store, and another rank would take it for lost, or for one that has dropped its communicator.
#[test]
fn a_rank_that_leaves_after_an_abort_tells_the_others_the_cause_without_the_store() {
    for (machines, is_inside) in PLACEMENTS.into_iter().flat_map(|machines| [(machines, true), (machines, false)]) {
        let shared = Arc::new(Shared::default());
        let links = [0, 1].map(|_| {
            let store = Reached { store: shared.store().clone(), cause: OnceLock::new() };
            Arc::new(Link::new(Arc::new(store), shared.clone(), Activity::default(), |_| ()))
        });
        let errors = with_links(machines, &links, |rank, comm| {
            if rank == 1 {
                links[1].abort(0, &"the controller is silent".into());
            }
            (rank == 0 || is_inside).then(|| comm.barrier().unwrap_err())
        });
        let error = errors[0].as_ref().unwrap();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        assert!(error.to_string().ends_with("aborted, because the controller is silent"), "{error}");
    }
}

#[test]
fn each_rank_needs_a_machine() {
    let world = World::new(2, 1).unwrap();
    let (at, link) = (BACKEND.rendezvous(&world).unwrap(), Arc::new(Link::bare(Arc::new(Shared::default()))));
    let mut queue = Host.bind(Device::CPU).unwrap();
    let params = ConnectParams::new(Rank::new(0), world, &mut *queue, link);
    let error = Communicator::connect_on(params, &at, &[0]).unwrap_err();
    assert_eq!(error.to_string(), "connect: the machines of 1 ranks, but there are 2");
}
