//! The shape of a group of devices, with the reasons.

use disco_core::env::Variable;
use disco_core::{Error, Result};

use super::topology::{Mesh, Topology};

/// The shape of a group of devices.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The shape.
    pub topology: Topology,
    /// The reasons: one sentence each.
    pub why: Vec<String>,
    /// Whether `DISCO_P2P_TOPOLOGY` has set the shape, independent of the links.
    pub is_forced: bool,
}

/// The variable by which tests force a shape.
const TOPOLOGY_VARIABLE: &str = "DISCO_P2P_TOPOLOGY";

impl Decision {
    /// Decides the shape of `devices` devices with these links. The shape is [`Topology::Unknown`] if the links are not
    /// known.
    ///
    /// # Errors
    /// `DISCO_P2P_TOPOLOGY` is not a shape, or not possible with so many devices.
    pub fn of(devices: usize, mesh: &Result<Mesh>) -> Result<Self> {
        match Variable::read(TOPOLOGY_VARIABLE).text()? {
            Some(shape) => Self::forced(shape, devices, mesh),
            None => Ok(Self::found(mesh)),
        }
    }

    fn found(mesh: &Result<Mesh>) -> Self {
        match mesh {
            Ok(mesh) => {
                let topology = Topology::of(mesh);
                Self { why: topology.why(mesh), topology, is_forced: false }
            }
            Err(error) => {
                let why = vec![format!("the links are not known: {error}")];
                Self { topology: Topology::Unknown, why, is_forced: false }
            }
        }
    }

    fn forced(shape: &str, devices: usize, mesh: &Result<Mesh>) -> Result<Self> {
        let refused = |why: &str| Error::invalid(format!("{TOPOLOGY_VARIABLE}={shape}: {why}"));
        let found = Self::found(mesh).topology;
        let topology = match shape {
            "fully_connected" if devices < 2 => return Err(refused("it takes two devices")),
            "fully_connected" => Topology::FullyConnected,
            "hybrid_cube_mesh" if devices != 8 => return Err(refused(&format!("it has 8 devices, not {devices}"))),
            "hybrid_cube_mesh" => match found {
                Topology::HybridCubeMesh { .. } => found,
                _ => Topology::HybridCubeMesh { relay: std::array::from_fn(|device| device ^ 4), half: 0b1111 },
            },
            "unknown" => Topology::Unknown,
            _ => return Err(refused("the shapes are: fully_connected, hybrid_cube_mesh, unknown")),
        };
        Ok(Self { topology, why: vec![format!("{TOPOLOGY_VARIABLE} says so")], is_forced: true })
    }
}

#[cfg(test)]
mod tests {
    use disco_core::Unavailable;

    use super::*;
    use crate::p2p::Ends;

    fn switched(devices: usize) -> Result<Mesh> {
        Ok(Mesh::new(&vec![Ends { peers: Vec::new(), switches: 6 }; devices]))
    }

    #[test]
    fn unknown_links_give_an_unknown_shape_with_the_reason() {
        let decision = Decision::found(&Err(Unavailable::new("NVML").into()));
        assert_eq!(decision.topology, Topology::Unknown);
        assert_eq!(decision.why, ["the links are not known: NVML is not available"]);
        assert_eq!(Decision::found(&switched(4)).topology, Topology::FullyConnected);
    }

    #[test]
    fn the_variable_forces_any_shape_that_the_devices_can_have() {
        let force = |shape, devices| Decision::forced(shape, devices, &switched(devices));
        for (shape, devices) in [("fully_connected", 2), ("hybrid_cube_mesh", 8), ("unknown", 1)] {
            let decision = force(shape, devices).unwrap();
            assert_eq!((decision.topology.to_string(), decision.is_forced), (shape.to_owned(), true));
            assert_eq!(decision.why, ["DISCO_P2P_TOPOLOGY says so"]);
        }
        let relay = [4, 5, 6, 7, 0, 1, 2, 3];
        assert_eq!(force("hybrid_cube_mesh", 8).unwrap().topology, Topology::HybridCubeMesh { relay, half: 0b1111 });
        let refused = |shape, devices| force(shape, devices).unwrap_err().to_string();
        assert!(refused("hybrid_cube_mesh", 4).contains("it has 8 devices, not 4"));
        assert!(refused("fully_connected", 1).contains("it takes two devices"));
        let known = "DISCO_P2P_TOPOLOGY=ring: the shapes are: fully_connected, hybrid_cube_mesh, unknown";
        assert!(refused("ring", 4).ends_with(known), "{}", refused("ring", 4));
    }
}
