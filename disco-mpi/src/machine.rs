//! Machines of ranks: ranks of one machine can communicate without a network.

use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Size of an encoded machine: its id and its name.
pub(crate) const RECORD_BYTES: usize = ID_BYTES + NAME_BYTES;
const ID_BYTES: usize = 8;
/// Longest name of a machine in bytes; the limit of Linux.
const NAME_BYTES: usize = 64;

/// A machine, or a container that is isolated like one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    id: u64,
    name: String,
}

impl Machine {
    /// The machine of this process.
    ///
    /// The id is a hash of the boot id, the namespaces and the name. The network namespace counts because abstract
    /// sockets belong to it, and the pid namespace because processes see only processes of their own one. The name
    /// distinguishes virtual machines that were cloned while they ran and so have the same boot id.
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

    /// The name, for users.
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

/// The number of machines, if each has an equal number of consecutive ranks; otherwise the number of ranks.
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
    fn a_machine_is_decoded_as_it_was_encoded() {
        let here = Machine::this();
        assert_eq!(Machine::read(&here.write()), Machine::this());
        let long = Machine { id: 7, name: "a".repeat(100) };
        assert_eq!(Machine::read(&long.write()), Machine { id: 7, name: "a".repeat(64) });
    }

    #[test]
    fn machines_with_equal_numbers_of_consecutive_ranks_are_counted() {
        let on = |ids: &[u64]| {
            let machines = ids.iter().map(|id| Machine { id: *id, name: String::new() });
            count(&machines.collect::<Vec<_>>())
        };
        assert_eq!([on(&[5]), on(&[5, 5, 5]), on(&[5, 5, 3, 3]), on(&[5, 3])], [1, 1, 2, 2]);
        assert_eq!([on(&[5, 5, 3]), on(&[5, 3, 5, 3]), on(&[5, 5, 3, 3, 5, 5])], [3, 4, 6]);
    }
}
