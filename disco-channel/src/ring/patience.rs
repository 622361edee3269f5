//! How long a reader stays awake for an item.

/// Looks at the ring before a reader sleeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// With a processor to itself.
    pub(super) spins: u32,
    /// Letting others run in between.
    pub(super) yields: u32,
}

impl Patience {
    /// What pays on this machine: spinning only helps if the writer runs at the same time.
    #[cfg(not(loom))]
    pub(super) fn of_machine() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self { spins: if processors > 1 { 64 } else { 0 }, yields: 4 }
    }

    /// None: a model looks at each wait once.
    #[cfg(loom)]
    pub(super) fn of_machine() -> Self {
        Self { spins: 0, yields: 0 }
    }
}
