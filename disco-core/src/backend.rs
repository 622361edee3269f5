//! Backends: plug-ins of the data plane.

use std::sync::Arc;
use std::time::Duration;

use crate::communicator::Communicator;
use crate::config::{Uplink, WorkerConfig};
use crate::device::DeviceKind;
use crate::device_api::{self, Queue};
use crate::error::{Error, Result, Unavailable};
use crate::id::Rank;
use crate::link::Link;
use crate::suggestion::similar;
use crate::world::World;

/// A factory of communicators over a library that may be missing on this machine.
///
/// ```
/// use disco_core::backend::{self, Backend, Probe, Rendezvous, ConnectParams};
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
///     fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>> {
///         // Connects to the other ranks through `params.link.store()` and returns this rank's communicator.
///         Err(Error::state(format!("{} has no peers at {at:?}", params.rank)))
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
/// `examples/own_backend.rs` also implements the communicators. `disco-cli/tests/own_backend.rs` runs the conformance
/// suite and the `disco` command over that backend.
pub trait Backend: Send + Sync + 'static {
    /// The name for users: `local`, `tcp`, `mpi`, `nccl`, `rccl`.
    fn name(&self) -> &'static str;

    /// The device kind of the tensors that the backend transfers.
    fn device_kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }

    /// Whether the ranks may be on several machines.
    fn spans_machines(&self) -> bool {
        true
    }

    /// Whether ranks of several nodes check when they connect that all are on one machine, if the backend does not
    /// [span machines](Self::spans_machines).
    fn joins_nodes_of_one_machine(&self) -> bool {
        false
    }

    /// Loads the library and reads its version, without starting it.
    ///
    /// # Errors
    /// The backend can't be used on this machine.
    fn probe(&self) -> Result<Probe, Unavailable>;

    /// The rendezvous of the ranks of a new communicator. Called once, on the controller.
    ///
    /// # Errors
    /// The library fails.
    fn rendezvous(&self, world: &World) -> Result<Rendezvous>;

    /// Connects one rank and returns its communicator of the whole world. Called on all ranks at the same time.
    ///
    /// # Errors
    /// [`Error::Deadline`] with the ranks that have not arrived, [`Error::Aborted`], or errors of the library.
    fn connect(&self, params: ConnectParams<'_>, at: &Rendezvous) -> Result<Box<dyn Communicator>>;
}

crate::format_as!(Debug for dyn Backend, |it| "<backend {}>", it.name());

/// The library that a backend found on this machine.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The path of the library, or `built in`.
    pub library: String,
    /// The version, as the library reports it.
    pub version: String,
    /// Details for users, such as driver, devices and launcher, as names and values.
    pub details: Vec<(String, String)>,
}

impl Probe {
    /// A library at a path (or `built in`) and its version.
    pub fn new(library: impl Into<String>, version: impl Into<String>) -> Self {
        Self { library: library.into(), version: version.into(), details: Vec::new() }
    }

    /// Adds details for users, as names and values.
    #[must_use]
    pub fn with_details(self, details: Vec<(String, String)>) -> Self {
        Self { details, ..self }
    }
}

/// The rendezvous of ranks that connect: opaque bytes of a backend, at most [`Rendezvous::MAX_BYTES`], broadcast to all
/// ranks. They may be a secret, and `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub struct Rendezvous(Vec<u8>);

impl Rendezvous {
    /// Largest size in bytes.
    pub const MAX_BYTES: usize = 4096;

    /// Wraps a backend's bytes.
    ///
    /// # Errors
    /// `bytes` is larger than [`Rendezvous::MAX_BYTES`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.len() <= Self::MAX_BYTES {
            Ok(Self(bytes))
        } else {
            Err(Error::invalid(format!("a rendezvous has {} bytes, at most {}", bytes.len(), Self::MAX_BYTES)))
        }
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

crate::format_as!(Debug for Rendezvous, |it| "<rendezvous of {} bytes>", it.0.len());

/// The parameters of one rank for [`Backend::connect`].
#[non_exhaustive]
#[derive(Debug)]
pub struct ConnectParams<'a> {
    /// The rank in the new communicator.
    pub rank: Rank,
    /// The workers of the session.
    pub world: World,
    /// The device and stream of the worker.
    pub queue: &'a mut (dyn Queue + 'static),
    /// The worker's link to its peers and the controller.
    pub link: Arc<Link>,
    /// Limit for one collective, from its call.
    pub deadline: Duration,
    /// Limit for the wait for peers to connect.
    pub connect_deadline: Duration,
    /// The connection of the worker's node to the controller; none on the controller's machine.
    pub uplink: Option<Uplink>,
}

impl<'a> ConnectParams<'a> {
    /// Parameters with the deadlines of [`WorkerConfig::new`].
    pub fn new(rank: Rank, world: World, queue: &'a mut (dyn Queue + 'static), link: Arc<Link>) -> Self {
        let WorkerConfig { collective_deadline: deadline, connect_deadline, .. } = WorkerConfig::new(world);
        Self { rank, world, queue, link, deadline, connect_deadline, uplink: None }
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
/// A crate that the program does not refer to is not linked, so its backend is missing. Programs therefore write
/// `use disco_local as _;`.
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
/// The workers are on several machines and the backend reaches one. The text lists the backends of this program that
/// span machines.
pub fn check_reach(backend: &dyn Backend, world: &World) -> Result<()> {
    if world.nodes() == 1 || backend.spans_machines() || backend.joins_nodes_of_one_machine() {
        return Ok(());
    }
    let others: Vec<_> = all().into_iter().filter(|other| other.spans_machines()).map(|other| other.name()).collect();
    let others = match others[..] {
        [] => "this program has no backend that reaches further: its features are tcp, mpi, nccl, rccl".to_owned(),
        _ => format!("backends that reach further: {}", others.join(", ")),
    };
    let (name, nodes) = (backend.name(), world.nodes());
    Err(Error::invalid(format!("{name} reaches workers of one machine, and this session has {nodes} nodes; {others}")))
}

/// The backends of Disco: name, Cargo feature of the package `disco-runtime`, crate.
const SHIPPED: [(&str, &str, &str); 7] = [
    ("local", "local", "disco_local"),
    ("tcp", "tcp", "disco_tcp"),
    ("mpi", "mpi", "disco_mpi"),
    ("nccl", "nccl", "disco_nccl"),
    ("cuda_p2p", "nccl", "disco_nccl"),
    ("rccl", "rccl", "disco_rccl"),
    ("rocm_p2p", "rccl", "disco_rccl"),
];

/// The remedy for a backend that is not among the `known` ones of the program.
fn advice(name: &str, known: &[&str]) -> String {
    let shipped = SHIPPED.iter().map(|(shipped, ..)| *shipped);
    match (SHIPPED.iter().find(|(shipped, ..)| *shipped == name), similar(name, known.iter().copied().chain(shipped))) {
        (Some((_, feature, module)), _) => format!(
            "enable the feature `{feature}` of the package `disco-runtime`, or depend on `{}` and write `use {module} as _;`",
            module.replace('_', "-")
        ),
        (None, Some(suggestion)) => format!("did you mean `{suggestion}`?"),
        (None, None) => {
            "a backend of another crate is linked once the program mentions that crate: write `use the_crate as _;`"
                .into()
        }
    }
}

/// The name that stands for the backend which [`choose`] finds.
pub const AUTO: &str = "auto";

/// The backend of GPUs (`nccl`, then `rccl`) if it is available and this machine has a device for each of its workers; otherwise
/// `local`, or `tcp` in a session of several nodes. All machines must be alike.
///
/// # Errors
/// As [`find`]: the program has no such backend.
pub fn choose(world: &World) -> Result<&'static dyn Backend> {
    let has_devices = |backend: &&dyn Backend| {
        let devices = device_api::find(backend.device_kind()).ok().and_then(|api| api.count().ok());
        devices.is_some_and(|count| count >= world.per_node()) && backend.probe().is_ok()
    };
    let of_devices = ["nccl", "rccl"].into_iter().filter_map(|name| find(name).ok()).find(has_devices);
    of_devices.map_or_else(|| find(if world.nodes() > 1 { "tcp" } else { "local" }), Ok)
}

/// The backend with this name.
///
/// # Errors
/// [`Error::Unavailable`] with the backends of this program, and a similar name or the way to add the missing one.
pub fn find(name: &str) -> Result<&'static dyn Backend> {
    all().into_iter().find(|backend| backend.name() == name).ok_or_else(|| {
        let known: Vec<_> = all().iter().map(|backend| backend.name()).collect();
        let advice = advice(name, &known);
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        let why = format!("it has {known}; {advice}");
        let absent = Unavailable::new(format!("backend `{name}`"));
        Error::Unavailable(absent.with_tried("the backends compiled into this program", why))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backend of one machine.
    #[derive(Debug)]
    struct Here;

    impl Backend for Here {
        fn name(&self) -> &'static str {
            "here"
        }

        fn spans_machines(&self) -> bool {
            false
        }

        fn probe(&self) -> Result<Probe, Unavailable> {
            Err(Unavailable::new("here"))
        }

        fn rendezvous(&self, _: &World) -> Result<Rendezvous> {
            Rendezvous::new("here")
        }

        fn connect(&self, _: ConnectParams<'_>, _: &Rendezvous) -> Result<Box<dyn Communicator>> {
            Err(Error::NoCommunicator)
        }
    }

    #[test]
    fn a_backend_of_one_machine_is_refused_for_several_nodes() {
        let world = World::new(4, 1).unwrap();
        assert!(check_reach(&Here, &world).is_ok());
        let refused = check_reach(&Here, &world.on_nodes(2).unwrap()).unwrap_err().to_string();
        assert_eq!(
            refused,
            "here reaches workers of one machine, and this session has 2 nodes; this program has no backend that reaches \
             further: its features are tcp, mpi, nccl, rccl"
        );
    }

    #[test]
    fn a_backend_that_is_not_linked_is_an_error_that_names_the_remedy() {
        let text = |name| find(name).unwrap_err().to_string();
        let has = "tried the backends compiled into this program: it has none";
        assert_eq!(
            text("cuda_p2p"),
            format!(
                "backend `cuda_p2p` is not available; {has}; enable the feature `nccl` of the package `disco-runtime`, or depend on \
                 `disco-nccl` and write `use disco_nccl as _;`"
            )
        );
        assert_eq!(text("locl"), format!("backend `locl` is not available; {has}; did you mean `local`?"));
        assert_eq!(
            text("mine"),
            format!(
                "backend `mine` is not available; {has}; a backend of another crate is linked once the program mentions that \
                 crate: write `use the_crate as _;`"
            )
        );
    }
}
