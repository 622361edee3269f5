//! Links between devices, and the shapes that kernels are written for. The rules are those of PyTorch's IntraNodeComm,
//! with one difference: a link counts only if both of its ends report it.

use std::fmt;
use std::ops::RangeInclusive;

/// The numbers of ranks that Disco's kernels support.
pub const RANKS: RangeInclusive<usize> = 2..=8;

/// Where the links of one device end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "each vendor's crate writes them")]
pub struct Ends {
    /// A peer's position in the group, once for each link to it.
    pub peers: Vec<usize>,
    /// The number of links to a switch.
    pub switches: u32,
}

/// The number of links from each device of a group to each other device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mesh {
    rows: Vec<Vec<u32>>,
}

/// The shape of a group's links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "kernels are chosen by shape, so each choice must handle a new shape")]
pub enum Topology {
    /// Each two devices are linked.
    FullyConnected,
    /// Two fully connected groups of four. Each device has a link to one device of the other group, its relay.
    HybridCubeMesh {
        /// Each device's relay.
        relay: [usize; 8],
        /// The group of device 0, as a mask with a bit for each device.
        half: u8,
    },
    /// A shape without kernels.
    Unknown,
}

impl Mesh {
    /// The mesh of devices with these link ends. All switches count as one network: two devices have as many links
    /// through it as the device with fewer links to switches.
    pub fn new(ends: &[Ends]) -> Self {
        let count = |from: usize, to: usize| {
            if from == to {
                0
            } else {
                let direct = ends[from].peers.iter().filter(|peer| **peer == to).count() as u32;
                direct + ends[from].switches.min(ends[to].switches)
            }
        };
        let row = |from| (0..ends.len()).map(|to| count(from, to)).collect();
        Self { rows: (0..ends.len()).map(row).collect() }
    }

    /// The number of devices.
    pub fn size(&self) -> usize {
        self.rows.len()
    }

    /// A row for each device, with the number of its links to each device.
    pub fn rows(&self) -> &[Vec<u32>] {
        &self.rows
    }

    fn are_linked(&self, one: usize, other: usize) -> bool {
        self.rows[one][other] > 0 && self.rows[other][one] > 0
    }

    fn neighbours(&self, of: usize) -> impl Iterator<Item = usize> {
        (0..self.size()).filter(move |other| self.are_linked(of, *other))
    }

    /// Pairs of devices without a link.
    fn gaps(&self) -> Vec<(usize, usize)> {
        let pairs = (0..self.size()).flat_map(|one| (one + 1..self.size()).map(move |other| (one, other)));
        pairs.filter(|(one, other)| !self.are_linked(*one, *other)).collect()
    }

    /// The relay of each device, or the reason why this is not a hybrid cube mesh.
    fn relays(&self) -> Result<[usize; 8], String> {
        if self.size() != 8 {
            return Err(format!("there are {} devices, not 8", self.size()));
        }
        let mut relay = [0; 8];
        for (device, relay) in relay.iter_mut().enumerate() {
            let neighbours = self.neighbours(device).count();
            if neighbours != 4 {
                return Err(format!("device {device} has links to {neighbours} others, not to 4"));
            }
            let is_apart = |other: &usize| !self.neighbours(*other).any(|theirs| self.are_linked(device, theirs));
            match self.neighbours(device).filter(is_apart).collect::<Vec<_>>()[..] {
                [only] => *relay = only,
                ref apart => {
                    return Err(format!(
                        "device {device} shares no neighbour with {} of its 4, not with one",
                        apart.len()
                    ));
                }
            }
        }
        Ok(relay)
    }
}

impl Topology {
    /// The name of the shape, for users and for environment variables.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FullyConnected => "fully_connected",
            Self::HybridCubeMesh { .. } => "hybrid_cube_mesh",
            Self::Unknown => "unknown",
        }
    }

    /// The shape of these links.
    pub fn of(mesh: &Mesh) -> Self {
        if mesh.size() > 1 && mesh.gaps().is_empty() {
            return Self::FullyConnected;
        }
        mesh.relays().map_or(Self::Unknown, |relay| {
            let near = mesh.neighbours(0).filter(|other| *other != relay[0]);
            Self::HybridCubeMesh { relay, half: near.fold(1, |half, device| half | 1 << device) }
        })
    }

    /// Whether there are kernels for the shape.
    pub fn has_kernels(&self) -> bool {
        *self != Self::Unknown
    }

    /// For a hybrid cube mesh: the group of a device, as a mask with a bit for each device, and the relay of the
    /// device.
    pub fn near(&self, device: usize) -> Option<(u8, usize)> {
        match self {
            Self::HybridCubeMesh { relay, half } => {
                Some((if half >> device & 1 == 1 { *half } else { !half }, *relay.get(device)?))
            }
            _ => None,
        }
    }

    /// The reasons why the links have this shape: one sentence each.
    pub fn why(&self, mesh: &Mesh) -> Vec<String> {
        match self {
            Self::FullyConnected => vec![full(mesh)],
            Self::HybridCubeMesh { relay, .. } => {
                let pairs = relay.iter().enumerate().filter(|(device, relay)| device < relay);
                let pairs: Vec<_> = pairs.map(|(device, relay)| format!("{device}-{relay}")).collect();
                let relays = pairs.join(" ");
                vec![format!(
                    "each of 8 devices has links to 4 others, and shares no neighbour with one of them, its relay: \
                     {relays}"
                )]
            }
            Self::Unknown if mesh.size() < 2 => vec!["a link takes two devices".to_owned()],
            Self::Unknown => lacking(mesh),
        }
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

fn full(mesh: &Mesh) -> String {
    let links = || {
        mesh.rows.iter().enumerate().flat_map(|(from, row)| row.iter().enumerate().filter(move |(to, _)| *to != from))
    };
    let (least, most) = links()
        .map(|(_, links)| *links)
        .fold((u32::MAX, 0), |(least, most), links| (least.min(links), most.max(links)));
    if least == most {
        format!("each two devices have links both ways, {least} of them")
    } else {
        format!("each two devices have links both ways, {least} to {most} of them")
    }
}

/// The reasons why the links have no known shape: the first pairs without a link, one-sided links first; the number of
/// other such pairs; and the missing property of a hybrid cube mesh.
fn lacking(mesh: &Mesh) -> Vec<String> {
    let mut gaps = mesh.gaps();
    gaps.sort_by_key(|(one, other)| mesh.rows[*one][*other] == mesh.rows[*other][*one]);
    let mut why: Vec<String> = gaps.iter().take(MAX_NAMED_GAPS).map(|(one, other)| gap(mesh, *one, *other)).collect();
    match gaps.len().saturating_sub(MAX_NAMED_GAPS) {
        0 => {}
        1 => why.push("1 more pair of devices has no link".to_owned()),
        more => why.push(format!("{more} more pairs of devices have no link")),
    }
    why.extend(mesh.relays().err().map(|lacks| format!("it is no hybrid cube mesh: {lacks}")));
    why
}

fn gap(mesh: &Mesh, one: usize, other: usize) -> String {
    match (mesh.rows[one][other], mesh.rows[other][one]) {
        (0, 0) => format!("devices {one} and {other} have no link"),
        (0, _) => format!("device {other} has a link to device {one}, which says that there is none"),
        _ => format!("device {one} has a link to device {other}, which says that there is none"),
    }
}

/// The number of pairs without a link that are named.
const MAX_NAMED_GAPS: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// NVIDIA's DGX-1 with V100: the peers of each device's six links.
    const DGX_1: [[usize; 6]; 8] = [
        [1, 2, 3, 3, 4, 4],
        [0, 2, 2, 3, 5, 5],
        [0, 1, 1, 3, 3, 6],
        [0, 0, 1, 2, 2, 7],
        [0, 0, 5, 6, 7, 7],
        [1, 1, 4, 6, 6, 7],
        [2, 4, 5, 5, 7, 7],
        [3, 4, 4, 5, 6, 6],
    ];
    const RELAY: [usize; 8] = [4, 5, 6, 7, 0, 1, 2, 3];

    fn direct(peers: &[&[usize]]) -> Mesh {
        Mesh::new(&peers.iter().map(|peers| Ends { peers: peers.to_vec(), switches: 0 }).collect::<Vec<_>>())
    }

    fn switched(switches: &[u32]) -> Mesh {
        Mesh::new(&switches.iter().map(|&switches| Ends { peers: Vec::new(), switches }).collect::<Vec<_>>())
    }

    /// The same devices in another order: device i is the former device `order[i]`.
    fn permuted(peers: &[[usize; 6]], order: &[usize]) -> Mesh {
        let place = |device: &usize| order.iter().position(|was| was == device).unwrap();
        let peers: Vec<Vec<usize>> = order.iter().map(|was| peers[*was].iter().map(place).collect()).collect();
        direct(&peers.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    fn why(mesh: &Mesh) -> Vec<String> {
        Topology::of(mesh).why(mesh)
    }

    #[test]
    fn devices_on_switches_are_fully_connected() {
        for devices in 2..=16 {
            let mesh = switched(&vec![18; devices]);
            assert_eq!(Topology::of(&mesh), Topology::FullyConnected, "{devices}");
            assert!(mesh.rows().iter().enumerate().all(|(i, row)| row[i] == 0), "none has a link to itself");
            assert_eq!(why(&mesh), ["each two devices have links both ways, 18 of them"]);
        }
    }

    #[test]
    fn two_devices_have_as_many_links_through_switches_as_the_one_that_has_fewer() {
        let mesh = switched(&[18, 17, 6]);
        assert_eq!(mesh.rows(), [[0, 17, 6], [17, 0, 6], [6, 6, 0]]);
        assert_eq!(why(&mesh), ["each two devices have links both ways, 6 to 17 of them"]);
        let mesh = switched(&[18, 18, 0]);
        assert_eq!(Topology::of(&mesh), Topology::Unknown);
        assert_eq!(why(&mesh)[..2], ["devices 0 and 2 have no link", "devices 1 and 2 have no link"]);
    }

    #[test]
    fn links_to_devices_and_through_switches_add_up() {
        let ends = |peer, switches| Ends { peers: vec![peer, peer], switches };
        let mesh = Mesh::new(&[ends(1, 3), ends(0, 4)]);
        assert_eq!(mesh.rows(), [[0, 5], [5, 0]]);
    }

    #[test]
    fn fewer_than_two_devices_have_no_shape() {
        for mesh in [switched(&[]), switched(&[18])] {
            assert_eq!(Topology::of(&mesh), Topology::Unknown);
            assert_eq!(why(&mesh), ["a link takes two devices"]);
        }
    }

    #[test]
    fn devices_without_links_have_no_shape() {
        for devices in 2..=16 {
            let mesh = switched(&vec![0; devices]);
            assert_eq!(Topology::of(&mesh), Topology::Unknown, "{devices}");
            let more =
                format!("{} more pairs of devices have no link", (devices * (devices - 1) / 2).saturating_sub(4));
            assert_eq!(why(&mesh).contains(&more), devices > 3, "{:?}", why(&mesh));
        }
        let four = why(&switched(&[0; 4]));
        assert_eq!(
            four[3..],
            [
                "devices 1 and 2 have no link",
                "2 more pairs of devices have no link",
                "it is no hybrid cube mesh: there are 4 devices, not 8"
            ]
        );
    }

    #[test]
    fn half_of_a_dgx_1_is_fully_connected() {
        let half: Vec<Vec<usize>> =
            DGX_1[..4].iter().map(|peers| peers.iter().copied().filter(|peer| *peer < 4).collect()).collect();
        let mesh = direct(&half.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(Topology::of(&mesh), Topology::FullyConnected);
        assert_eq!(why(&mesh), ["each two devices have links both ways, 1 to 2 of them"]);
    }

    #[test]
    fn a_dgx_1_is_a_hybrid_cube_mesh() {
        let mesh = permuted(&DGX_1, &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Topology::of(&mesh), Topology::HybridCubeMesh { relay: RELAY, half: 0b1111 });
        assert!(why(&mesh)[0].ends_with("its relay: 0-4 1-5 2-6 3-7"), "{:?}", why(&mesh));
    }

    #[test]
    fn a_link_that_only_one_end_reports_does_not_count() {
        let mut ends: Vec<Ends> = DGX_1.iter().map(|peers| Ends { peers: peers.to_vec(), switches: 0 }).collect();
        ends[7].peers.retain(|peer| *peer != 3);
        let mesh = Mesh::new(&ends);
        assert_eq!((mesh.rows()[3][7], mesh.rows()[7][3]), (1, 0));
        assert_eq!(Topology::of(&mesh), Topology::Unknown);
        let why = why(&mesh);
        assert_eq!(why[0], "device 3 has a link to device 7, which says that there is none");
        assert_eq!(why.last().unwrap(), "it is no hybrid cube mesh: device 3 has links to 3 others, not to 4");
        let two = direct(&[&[1], &[]]);
        assert_eq!(two.gaps(), [(0, 1)]);
        assert_eq!(gap(&two, 0, 1), "device 0 has a link to device 1, which says that there is none");
        let two = direct(&[&[], &[0]]);
        assert_eq!(gap(&two, 0, 1), "device 1 has a link to device 0, which says that there is none");
    }

    /// Eight devices with four neighbours each, but without relays, or with several.
    #[test]
    fn four_neighbours_without_exactly_one_relay_are_no_cube_mesh() {
        let near = |steps: [usize; 4]| {
            let peers: Vec<Vec<usize>> = (0..8).map(|i| steps.iter().map(|step| (i + step) % 8).collect()).collect();
            direct(&peers.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        // A ring with chords, in which each edge is in a triangle; and a bipartite graph, in which no edge is.
        for (steps, apart) in [([1, 2, 6, 7], 0), ([1, 3, 5, 7], 4)] {
            let mesh = near(steps);
            assert_eq!(Topology::of(&mesh), Topology::Unknown);
            let lacks =
                format!("it is no hybrid cube mesh: device 0 shares no neighbour with {apart} of its 4, not with one");
            assert_eq!(why(&mesh).last(), Some(&lacks));
        }
        // Device 0's links to its relay go to device 5 instead, which then has five neighbours.
        let mut peers = DGX_1;
        (peers[0][4], peers[0][5], peers[4][0], peers[4][1]) = (5, 5, 5, 5);
        peers[5][0] = 0;
        assert_eq!(Topology::of(&permuted(&peers, &[0, 1, 2, 3, 4, 5, 6, 7])), Topology::Unknown);
    }

    proptest! {
        #[test]
        fn a_cube_mesh_is_found_for_any_order_of_its_devices(
            order in Just((0..8).collect::<Vec<usize>>()).prop_shuffle()
        ) {
            let topology = Topology::of(&permuted(&DGX_1, &order));
            for device in 0..8 {
                let Some((near, relay)) = topology.near(device) else {
                    return Err(TestCaseError::fail("no cube mesh"));
                };
                prop_assert_eq!(order[relay], RELAY[order[device]]);
                for (other, was) in order.iter().enumerate() {
                    prop_assert_eq!(near >> other & 1 == 1, was / 4 == order[device] / 4);
                }
            }
        }

        #[test]
        fn a_cube_mesh_that_lacks_any_link_is_unknown(device in 0..8_usize, link in 0..6_usize) {
            let peer = DGX_1[device][link];
            let mut ends: Vec<Ends> = DGX_1.iter().map(|peers| Ends { peers: peers.to_vec(), switches: 0 }).collect();
            ends[device].peers.retain(|other| *other != peer);
            prop_assert_eq!(Topology::of(&Mesh::new(&ends)), Topology::Unknown);
        }

        #[test]
        fn the_shape_of_random_links_matches_the_links(rows in links()) {
            let ends: Vec<Ends> = rows.iter().map(|peers| Ends { peers: peers.clone(), switches: 0 }).collect();
            let mesh = Mesh::new(&ends);
            let topology = Topology::of(&mesh);
            let is_linked = |one: usize, other: usize| rows[one].contains(&other) && rows[other].contains(&one);
            let is_full = (0..mesh.size()).all(|one| (0..one).all(|other| is_linked(one, other)));
            prop_assert_eq!(topology == Topology::FullyConnected, is_full);
            prop_assert!(!topology.why(&mesh).is_empty());
            if let Topology::HybridCubeMesh { relay, .. } = topology {
                for (device, mine) in relay.into_iter().enumerate() {
                    prop_assert!(is_linked(device, mine) && relay[mine] == device);
                }
            }
        }
    }

    /// Random links between 2 to 16 devices, of which 95 % exist.
    fn links() -> impl Strategy<Value = Vec<Vec<usize>>> {
        (2..=16_usize).prop_flat_map(|size| {
            let row = proptest::collection::vec(prop::bool::weighted(0.95), size);
            proptest::collection::vec(row, size).prop_map(|rows| {
                let peers = |(from, row): (usize, Vec<bool>)| {
                    row.iter().enumerate().filter(|(to, is)| **is && *to != from).map(|(to, _)| to).collect()
                };
                rows.into_iter().enumerate().map(peers).collect()
            })
        })
    }
}
