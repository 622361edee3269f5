//! Kinds of machines.

/// A kind of machine.
#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Machine {
    /// GPUs without links.
    Pcie,
    /// Eight V100 in a hybrid cube mesh: six links each, none through a switch.
    Dgx1,
    /// A DGX-1 on which GPU 7's end of its link to GPU 3 is down.
    Broken,
    /// Sixteen V100, six links each, all to switches.
    Dgx2,
    /// Eight H100, eighteen links each, all to switches.
    H100,
}

impl Machine {
    const ALL: [(&str, Self); 5] = [
        ("pcie", Self::Pcie),
        ("dgx1", Self::Dgx1),
        ("broken", Self::Broken),
        ("dgx2", Self::Dgx2),
        ("h100", Self::H100),
    ];

    /// The machine of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, machine)| machine)
    }

    /// The machine of a number.
    pub(crate) fn numbered(number: u64) -> Self {
        Self::ALL.into_iter().find(|(_, machine)| *machine as u64 == number).map_or(Self::Pcie, |(_, machine)| machine)
    }
}
