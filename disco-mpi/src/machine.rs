//! Which ranks can meet without a network.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Bytes of what each rank says of its machine: what tells it from others, and its name.
pub(crate) const RECORD_BYTES: usize = ID_BYTES + NAME_BYTES;
const ID_BYTES: usize = 8;
/// No name is longer.
const NAME_BYTES: usize = 64;

/// A machine, or a container that is as good as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    id: u64,
    name: String,
}

impl Machine {
    /// This one. Sockets without a file are those of a network namespace, and processes see those of their own namespace
    /// alone; virtual machines that were copied while they ran have one boot between them, but names of their own.
    pub(crate) fn this() -> Self {
        let mut hasher = DefaultHasher::new();
        fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().hash(&mut hasher);
        for namespace in ["/proc/self/ns/net", "/proc/self/ns/pid"] {
            fs::read_link(namespace).ok().hash(&mut hasher);
        }
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        name.hash(&mut hasher);
        Self { id: hasher.finish(), name }
    }

    /// Its name, for users.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn write(&self) -> [u8; RECORD_BYTES] {
        let mut record = [0; RECORD_BYTES];
        record[..ID_BYTES].copy_from_slice(&self.id.to_le_bytes());
        let name = &self.name.as_bytes()[..self.name.len().min(NAME_BYTES)];
        record[ID_BYTES..ID_BYTES + name.len()].copy_from_slice(name);
        record
    }

    pub(crate) fn read(record: &[u8]) -> Self {
        let (id, name) = record.split_at(ID_BYTES.min(record.len()));
        let id = id.try_into().map_or(0, u64::from_le_bytes);
        Self { id, name: String::from_utf8_lossy(name).trim_end_matches('\0').to_owned() }
    }
}

/// How many machines ranks are on, if each has as many, one after the other; else each rank counts as one.
pub(crate) fn count(machines: &[Machine]) -> usize {
    let runs: Vec<&[Machine]> = machines.chunk_by(|a, b| a.id == b.id).collect();
    let is_even = runs.iter().all(|run| run.len() == runs[0].len());
    let is_one_run = |run: &&[Machine]| machines.iter().filter(|machine| machine.id == run[0].id).count() == run.len();
    if is_even && runs.iter().all(is_one_run) { runs.len() } else { machines.len() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_itself_on_every_rank() {
        let here = Machine::this();
        assert_eq!(Machine::read(&here.write()), Machine::this());
        let long = Machine { id: 7, name: "a".repeat(100) };
        assert_eq!(Machine::read(&long.write()), Machine { id: 7, name: "a".repeat(64) });
    }

    #[test]
    fn machines_with_equal_shares_are_counted() {
        let on = |ids: &[u64]| {
            let machines = ids.iter().map(|id| Machine { id: *id, name: String::new() });
            count(&machines.collect::<Vec<_>>())
        };
        assert_eq!([on(&[5]), on(&[5, 5, 5]), on(&[5, 5, 3, 3]), on(&[5, 3])], [1, 1, 2, 2]);
        assert_eq!([on(&[5, 5, 3]), on(&[5, 3, 5, 3]), on(&[5, 5, 3, 3, 5, 5])], [3, 4, 6]);
    }
}
