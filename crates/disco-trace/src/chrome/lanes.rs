//! Tracks on which the slices of one worker nest.

/// Largest number of tracks of a worker's own slices. On the last one, slices are cut so that they nest.
pub(super) const MAX_LANES: usize = 63;
/// Number of the track of the worker's device, behind the others.
pub(super) const DEVICE_LANE: usize = MAX_LANES;
/// Numbers of tracks that each worker has.
pub(super) const TRACKS: usize = MAX_LANES + 1;

/// The slices that are open on each track of one worker.
#[derive(Default)]
pub(super) struct Lanes {
    /// For each track the ends of its open slices, the outermost first.
    open: Vec<Vec<i128>>,
}

impl Lanes {
    /// The first track on which a slice nests, and the end to draw. Slices come in the order of their starts; of slices
    /// with the same start the longest first.
    pub(super) fn place(&mut self, start: i128, end: i128) -> (usize, i128) {
        let mut lane = 0;
        loop {
            if lane == self.open.len() {
                self.open.push(Vec::new());
            }
            let open = &mut self.open[lane];
            while open.last().is_some_and(|last| *last <= start) {
                open.pop();
            }
            let limit = open.last().copied();
            if limit.is_none_or(|limit| end <= limit) || lane + 1 == MAX_LANES {
                let end = limit.map_or(end, |limit| end.min(limit));
                open.push(end);
                return (lane, end);
            }
            lane += 1;
        }
    }

    /// Number of tracks in use.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_that_overlap_get_tracks_of_their_own_and_others_share_one() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.place(0, 10), (0, 10));
        assert_eq!(lanes.place(2, 5), (0, 5), "inside of the first");
        assert_eq!(lanes.place(4, 12), (1, 12), "neither inside nor after");
        assert_eq!(lanes.place(5, 10), (0, 10), "after the second, at the end of the first");
        assert_eq!(lanes.place(10, 20), (0, 20));
        assert_eq!(lanes.len(), 2);
    }

    #[test]
    fn slices_beyond_the_last_track_are_cut() {
        let mut lanes = Lanes::default();
        for slice in 0..MAX_LANES as i128 {
            assert_eq!(lanes.place(slice, 1_000 + slice), (slice as usize, 1_000 + slice));
        }
        assert_eq!(lanes.place(500, 2_000), (MAX_LANES - 1, 1_000 + MAX_LANES as i128 - 1));
    }
}
