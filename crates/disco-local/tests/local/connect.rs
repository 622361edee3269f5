//! The rendezvous of ranks through the backend.

use std::sync::Arc;
use std::time::Duration;

use disco_core::backend::Rendezvous;
use disco_core::device_api::{self, DeviceApi, Event, Queue};
use disco_core::link::{Link, Shared};
use disco_core::tensor::Storage;
use disco_core::{
    Backend, Communicator, CommunicatorExt, ConnectParams, Device, DeviceKind, Error, Rank, Result, Tensor, World,
};
use disco_local::BACKEND;

use super::{LONG, SHORT, on_threads};

fn link() -> Arc<Link> {
    Arc::new(Link::bare(Arc::new(Shared::default())))
}

fn connect(
    rank: u32,
    size: usize,
    link: Arc<Link>,
    deadline: Duration,
    at: &Rendezvous,
) -> Result<Box<dyn Communicator>> {
    let mut queue = device_api::Host.bind(Device::CPU).unwrap();
    let world = World::new(size, 1).unwrap();
    let mut params = ConnectParams::new(Rank::new(rank), world, &mut *queue, link);
    (params.deadline, params.connect_deadline) = (LONG, deadline);
    BACKEND.connect(params, at)
}

fn rendezvous() -> Rendezvous {
    BACKEND.rendezvous(&World::new(1, 1).unwrap()).unwrap()
}

#[test]
fn ranks_meet_by_their_rendezvous() {
    let meetings = [rendezvous(), rendezvous()];
    let ranks = meetings.iter().flat_map(|at| (0..3).map(move |rank| (rank, at))).collect();
    on_threads(ranks, |(rank, at)| {
        let mut comm = connect(rank, 3, link(), LONG, at).unwrap();
        assert_eq!((comm.rank(), comm.size()), (Rank::new(rank), 3));
        comm.barrier().unwrap();
    });
    // The first rendezvous was removed, so the same token starts a new one.
    connect(0, 1, link(), LONG, &meetings[0]).unwrap().barrier().unwrap();
}

#[test]
fn connect_past_its_deadline_names_the_missing_ranks() {
    let at = rendezvous();
    let errors = on_threads(vec![0, 3], |rank| connect(rank, 4, link(), SHORT, &at).unwrap_err().to_string());
    let together = "connect: no end after 50ms: ranks 1, 2 have not arrived; ranks 0, 3 wait";
    // On a slow machine one rank may arrive after the other has given up, and then misses it too.
    let alone = ["ranks 1, 2, 3 have not arrived; rank 0 waits", "ranks 0, 1, 2 have not arrived; rank 3 waits"];
    let is_expected = |error: &String| error.contains(together) || alone.iter().any(|text| error.contains(text));
    assert!(errors.iter().all(is_expected), "{errors:?}");
}

#[test]
fn an_abort_ends_the_wait_for_ranks() {
    let at = rendezvous();
    let links = [link(), link()];
    let errors = on_threads(vec![0, 1], |rank| match rank {
        0 => Some(connect(0, 3, links[0].clone(), LONG, &at).unwrap_err()),
        _ => {
            links[0].abort(0, &"worker 2 failed".into());
            None
        }
    });
    assert_eq!(errors[0].as_ref().unwrap().to_string(), "aborted, because worker 2 failed");
}

#[test]
fn ranks_that_expect_different_world_sizes_get_a_mismatch() {
    let at = rendezvous();
    let errors = on_threads(vec![2, 3], |size| connect(size as u32 - 2, size, link(), LONG, &at).unwrap_err());
    assert!(errors.iter().all(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
}

#[test]
fn connect_refuses_a_foreign_or_invalid_rendezvous_and_a_device_queue() {
    let at = rendezvous();
    let foreign = [(std::process::id() ^ 1).to_le_bytes().as_slice(), &at.as_bytes()[4..]].concat();
    let foreign = connect(0, 2, link(), LONG, &Rendezvous::new(foreign).unwrap()).unwrap_err();
    assert!(foreign.to_string().contains("ranks must be threads of one process"), "{foreign}");
    let junk = connect(0, 2, link(), LONG, &Rendezvous::new("junk").unwrap()).unwrap_err();
    assert_eq!(junk.to_string(), "4 bytes are not a rendezvous of the backend local");

    let world = World::new(1, 1).unwrap();
    let (rank, queue) = (Rank::new(0), &mut NoHost);
    let params = ConnectParams::new(rank, world, queue, link());
    let refused = BACKEND.connect(params, &at).unwrap_err();
    assert_eq!(refused.to_string(), "local does not support connect on cuda:1");
}

/// A queue of a device that is not the host.
#[derive(Debug)]
struct NoHost;

impl Queue for NoHost {
    fn device(&self) -> Device {
        Device::new(DeviceKind::Cuda, 1)
    }

    fn alloc(&mut self, _: usize) -> Result<Arc<Storage>> {
        unreachable!()
    }

    fn copy_in(&mut self, _: &Tensor, _: &Tensor) -> Result<()> {
        unreachable!()
    }

    fn copy_out(&mut self, _: &Tensor, _: &Tensor) -> Result<()> {
        unreachable!()
    }

    fn copy_within(&mut self, _: &Tensor, _: &Tensor) -> Result<()> {
        unreachable!()
    }

    fn record(&mut self) -> Result<Event> {
        unreachable!()
    }

    fn poll(&mut self, _: Event) -> Result<bool> {
        unreachable!()
    }

    fn synchronize(&mut self, _: Duration) -> Result<()> {
        unreachable!()
    }

    fn raw(&self) -> *mut std::ffi::c_void {
        unreachable!()
    }
}
