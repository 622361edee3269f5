//! Ids of workers, ranks, registers and groups.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// The id with this number.
            pub const fn new(id: u32) -> Self {
                Self(id)
            }

            /// The number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            /// The number in its wire encoding.
            pub const fn wire(self) -> i64 {
                self.0 as i64
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }

        impl From<u32> for $name {
            fn from(id: u32) -> Self {
                Self(id)
            }
        }
    };
}

id! {
    /// A worker of the session, numbered over all groups. Worker 0 is a thread of the controller's process, unless the
    /// session makes it a process of its own, or is a subset that names another worker first.
    WorkerId, "worker"
}

id! {
    /// A position in one communicator. Equal to the [`WorkerId`] only in the communicator of the whole world.
    Rank, "rank"
}

id! {
    /// A slot of every worker's register file.
    RegisterId, "register"
}

id! {
    /// One of the equal groups of workers.
    GroupId, "group"
}

impl RegisterId {
    /// Largest number of registers that a session has in use at once (2^24). It bounds every worker's register file.
    pub const COUNT: u32 = 1 << 24;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_printed_with_its_kind() {
        assert_eq!(WorkerId::new(3).to_string(), "worker 3");
        assert_eq!(Rank::new(0).to_string(), "rank 0");
        assert_eq!(RegisterId::new(17).to_string(), "register 17");
    }
}
