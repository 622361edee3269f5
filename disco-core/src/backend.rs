//! Plug-ins of the data plane.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::config::WorkerConfig;
use crate::device::DeviceKind;
use crate::device_api::Queue;
use crate::error::{Error, Result, Unavailable};
use crate::id::Rank;
use crate::link::Link;
use crate::world::World;

/// A library that may or may not be on this machine, and that makes communicators.
///
/// ```
/// use disco_core::backend::{self, Backend, Probe, Rendezvous, Seat};
/// use disco_core::{Communicator, Error, Result, Unavailable, World, register_backend};
///
/// struct Mine;
///
/// impl Backend for Mine {
///     fn name(&self) -> &'static str {
///         "mine"
///     }
///
///     fn probe(&self) -> Result<Probe, Unavailable> {
///         Ok(Probe::new("built in", env!("CARGO_PKG_VERSION")))
///     }
///
///     fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
///         Rendezvous::new("the name of a key in the store of the session")
///     }
///
///     fn connect(&self, seat: Seat<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
///         // Meets the other ranks through `seat.link.store()`, and returns this rank's communicator.
///         Err(Error::state(format!("{} has no peers at {at:?}", seat.rank)))
///     }
/// }
///
/// static BACKEND: Mine = Mine;
/// register_backend!(BACKEND);
///
/// assert_eq!(backend::find("mine")?.probe()?.library, "built in");
/// # Ok::<(), Error>(())
/// ```
///
/// `examples/own_backend.rs` makes communicators, too. `disco-cli/tests/own_backend.rs` runs the conformance suite and the `disco` command
/// over it.
pub trait Backend: Send + Sync + 'static {
    /// How users name it: `local`, `nccl`, `rccl`, `mpi`.
    fn name(&self) -> &'static str;

    /// Where the tensors that it carries live.
    fn device_kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    /// Whether its ranks may be on several machines.
    fn spans_machines(&self) -> bool {
        true
    }

    /// Loads the library and asks its version; starts nothing.
    ///
    /// # Errors
    /// Why it can't be used on this machine.
    fn probe(&self) -> Result<Probe, Unavailable>;

    /// Made once, on the controller: where the ranks of a new communicator will meet.
    ///
    /// # Errors
    /// The library refuses.
    fn rendezvous(&self, world: &World) -> Result<Rendezvous>;

    /// Made on every rank, at the same time: its communicator of the whole world.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming the ranks that did not come, [`Error::Aborted`], or the library's own.
    fn connect(&self, seat: Seat<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>>;
}

impl fmt::Debug for dyn Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "<backend {}>", self.name())
    }
}

/// What a backend found on this machine.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Where the library was loaded from, or `built in`.
    pub library: String,
    /// Its version, in its own words.
    pub version: String,
    /// More that a user may want to see: driver, devices, launcher.
    pub details: Vec<(String, String)>,
}

impl Probe {
    /// A library at a place, or `built in`, of a version.
    pub fn new(library: impl Into<String>, version: impl Into<String>) -> Self {
        Self { library: library.into(), version: version.into(), details: Vec::new() }
    }

    /// The same with more that a user may want to see.
    #[must_use]
    pub fn with_details(self, details: Vec<(String, String)>) -> Self {
        Self { details, ..self }
    }
}

/// Where ranks meet: opaque bytes of at most [`Rendezvous::LIMIT`], broadcast to all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendezvous(Vec<u8>);

impl Rendezvous {
    /// Largest size in bytes.
    pub const LIMIT: usize = 4096;

    /// Wraps a backend's bytes.
    ///
    /// # Errors
    /// More than [`Rendezvous::LIMIT`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        match bytes.len() <= Self::LIMIT {
            true => Ok(Self(bytes)),
            false => Err(Error::invalid(format!("a rendezvous has {} bytes, at most {}", bytes.len(), Self::LIMIT))),
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// One rank's place in a communicator to be made.
#[non_exhaustive]
#[derive(Debug)]
pub struct Seat<'a> {
    /// Its position.
    pub rank: Rank,
    /// All of them.
    pub world: World,
    /// The device and stream that it works on.
    pub queue: &'a mut (dyn Queue + 'static),
    /// The way to its peers.
    pub link: Arc<Link>,
    /// How long one collective may take, from entry.
    pub deadline: Duration,
    /// How long to wait for peers to connect.
    pub connect_deadline: Duration,
}

impl<'a> Seat<'a> {
    /// A seat with the deadlines of [`WorkerConfig::new`].
    pub fn new(rank: Rank, world: World, queue: &'a mut (dyn Queue + 'static), link: Arc<Link>) -> Self {
        let WorkerConfig { collective_deadline: deadline, connect_deadline, .. } = WorkerConfig::new(world);
        Self { rank, world, queue, link, deadline, connect_deadline }
    }
}

/// A backend as a value in the registry. Each backend crate exports one as `pub static BACKEND` and registers it with
/// [`register_backend!`](crate::register_backend).
#[allow(clippy::exhaustive_structs, reason = "`register_backend!` writes one in the crate of the backend")]
#[derive(Clone, Copy, Debug)]
pub struct BackendEntry(pub &'static dyn Backend);

inventory::collect!(BackendEntry);

/// Registers `static`s that implement [`Backend`], for [`find`] and [`all`].
///
/// A crate that nobody mentions is not linked and registers nothing: programs say `use disco_local as _;`.
#[macro_export]
macro_rules! register_backend {
    ($backend:path) => {
        $crate::inventory::submit! { $crate::backend::BackendEntry(&$backend) }
    };
}

/// The backends of this program, by name.
pub fn all() -> Vec<&'static dyn Backend> {
    let mut all: Vec<_> = inventory::iter::<BackendEntry>.into_iter().map(|entry| entry.0).collect();
    all.sort_by_key(|backend| backend.name());
    all
}

/// Checks that a backend reaches all workers of a world.
///
/// # Errors
/// They are on several machines and it reaches one, naming the backends of this program that reach further.
pub fn check_reach(backend: &dyn Backend, world: &World) -> Result<()> {
    if world.nodes() == 1 || backend.spans_machines() {
        return Ok(());
    }
    let others: Vec<_> = all().into_iter().filter(|other| other.spans_machines()).map(|other| other.name()).collect();
    let others = match others[..] {
        [] => "this program has no backend that reaches further: its features are nccl, rccl, mpi".to_owned(),
        _ => format!("backends that reach further: {}", others.join(", ")),
    };
    let (name, nodes) = (backend.name(), world.nodes());
    Err(Error::invalid(format!("{name} reaches workers of one machine, and this session has {nodes} nodes; {others}")))
}

/// The backends of Disco: name, Cargo feature of the crate `disco`, crate.
const SHIPPED: [(&str, &str, &str); 6] = [
    ("local", "local", "disco_local"),
    ("mpi", "mpi", "disco_mpi"),
    ("nccl", "nccl", "disco_nccl"),
    ("cuda_p2p", "nccl", "disco_nccl"),
    ("rccl", "rccl", "disco_rccl"),
    ("rocm_p2p", "rccl", "disco_rccl"),
];

/// What a user does about a backend that the program does not have.
fn advice(name: &str) -> String {
    match SHIPPED.iter().find(|(shipped, ..)| *shipped == name) {
        Some((_, feature, module)) => format!(
            "enable the feature `{feature}` of the crate `disco`, or depend on `{}` and write `use {module} as _;`",
            module.replace('_', "-")
        ),
        None => {
            "a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`"
                .into()
        }
    }
}

/// The backend of that name.
///
/// # Errors
/// [`Error::Unavailable`], listing the backends that this program has, and how it gets the missing one.
pub fn find(name: &str) -> Result<&'static dyn Backend> {
    all().into_iter().find(|backend| backend.name() == name).ok_or_else(|| {
        let known: Vec<_> = all().iter().map(|backend| backend.name()).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        Error::Unavailable(Unavailable {
            what: format!("backend `{name}`"),
            tried: vec![(
                "the backends compiled into this program".into(),
                format!("it has {known}; {}", advice(name)),
            )],
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_that_is_not_linked_comes_with_what_to_do() {
        let text = |name| find(name).unwrap_err().to_string();
        let has = "tried the backends compiled into this program: it has none";
        assert_eq!(
            text("cuda_p2p"),
            format!(
                "backend `cuda_p2p` is not available; {has}; enable the feature `nccl` of the crate `disco`, or depend on \
                 `disco-nccl` and write `use disco_nccl as _;`"
            )
        );
        assert_eq!(
            text("mine"),
            format!(
                "backend `mine` is not available; {has}; a backend of another crate is linked once the program mentions that \
                 crate: write `use the_crate as _;`"
            )
        );
    }
}
