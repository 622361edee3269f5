//! Which ranks are on which machine, and which branches of a reduction's tree these reduce.

use std::ops::Range;

/// The machines of a communicator's ranks.
#[derive(Debug)]
pub(crate) struct Machines {
    /// The machine of each rank, by its place in `ranks`.
    of: Vec<usize>,
    /// The ranks of each machine, in order.
    ranks: Vec<Vec<usize>>,
    /// The helpers of each machine, by the owners of shares.
    helpers: Vec<Vec<usize>>,
}

impl Machines {
    /// The machines of ranks that have these names of machines.
    pub(crate) fn new(names: impl Iterator<Item = usize>) -> Self {
        let (mut known, mut of, mut ranks) = (Vec::new(), Vec::new(), Vec::<Vec<usize>>::new());
        for (rank, name) in names.enumerate() {
            let machine = known.iter().position(|other| *other == name).unwrap_or_else(|| {
                known.push(name);
                ranks.push(Vec::new());
                known.len() - 1
            });
            ranks[machine].push(rank);
            of.push(machine);
        }
        let helpers = |(machine, ranks): (usize, &Vec<usize>)| {
            let mut others = ranks.iter().cycle();
            let helper = |owner: usize| if of[owner] == machine { Some(owner) } else { others.next().copied() };
            (0..of.len()).filter_map(helper).collect()
        };
        let helpers = ranks.iter().enumerate().map(helpers).collect();
        Self { of, ranks, helpers }
    }

    pub(crate) fn len(&self) -> usize {
        self.ranks.len()
    }

    /// The machine of a rank.
    pub(crate) fn of(&self, rank: usize) -> usize {
        self.of[rank]
    }

    /// The other ranks of a rank's machine, in order.
    pub(crate) fn neighbours(&self, rank: usize) -> impl Iterator<Item = usize> {
        self.ranks[self.of[rank]].iter().copied().filter(move |other| *other != rank)
    }

    /// The rank of a machine that collects and spreads the share of rank `owner`: that rank itself on its own machine. The
    /// shares of other machines are spread over the ranks.
    pub(crate) fn helper(&self, machine: usize, owner: usize) -> usize {
        self.helpers[machine][owner]
    }

    /// The largest branches of the [tree over the ranks](disco_local::finish) that are on one machine, in order: their ranks.
    pub(crate) fn branches(&self) -> Vec<Range<usize>> {
        let mut branches = Vec::new();
        self.add_branches(0..self.of.len(), &mut branches);
        branches
    }

    fn add_branches(&self, ranks: Range<usize>, branches: &mut Vec<Range<usize>>) {
        let machines = &self.of[ranks.clone()];
        if machines.windows(2).all(|two| two[0] == two[1]) {
            branches.push(ranks);
            return;
        }
        let middle = ranks.start + ranks.len().next_power_of_two() / 2;
        self.add_branches(ranks.start..middle, branches);
        self.add_branches(middle..ranks.end, branches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_reduces_the_largest_branches_of_the_tree() {
        let branches = |names: &[usize]| Machines::new(names.iter().copied()).branches();
        assert_eq!(branches(&[0, 0, 0, 0, 7, 7, 7, 7]), [0..4, 4..8]);
        assert_eq!(branches(&[0, 0, 0, 1, 1, 1, 2, 2, 2]), [0..2, 2..3, 3..4, 4..6, 6..8, 8..9]);
        assert_eq!(branches(&[0, 1, 0, 1]), [0..1, 1..2, 2..3, 3..4]);
        assert_eq!(branches(&[0, 0, 0, 0, 1, 1, 1]), [0..4, 4..7]);
    }

    #[test]
    fn each_rank_helps_with_shares_of_other_machines() {
        let machines = Machines::new([0, 0, 1, 1, 1].into_iter());
        let helpers = |machine| (0..5).map(|owner| machines.helper(machine, owner)).collect::<Vec<_>>();
        assert_eq!((helpers(0), helpers(1)), (vec![0, 1, 0, 1, 0], vec![2, 3, 2, 3, 4]));
    }
}
