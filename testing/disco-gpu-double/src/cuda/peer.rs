//! Access of devices to the memory of other devices.

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::abi::Code;
use super::device::Device;
use crate::settings;
use crate::sync::lock;

/// Ordinals of the devices to whose memory a device has access.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<BTreeSet<usize>>);

/// `cuDeviceCanAccessPeer`: no device is its own peer.
pub(crate) fn can_access(device: &Device, peer: &Device) -> bool {
    device.ordinal != peer.ordinal && settings::read().peer_access()
}

/// `cuCtxEnablePeerAccess`.
pub(crate) fn enable(device: &Device, peer: &Device) -> Result<(), Code> {
    if device.ordinal == peer.ordinal {
        return Err(Code::INVALID_DEVICE);
    }
    if !can_access(device, peer) {
        return Err(Code::PEER_ACCESS_UNSUPPORTED);
    }
    let is_new = lock(&device.peers.0).insert(peer.ordinal);
    if is_new { Ok(()) } else { Err(Code::PEER_ACCESS_ALREADY_ENABLED) }
}

impl Peers {
    /// Whether the set contains a device.
    pub(crate) fn have(&self, device: &Device) -> bool {
        lock(&self.0).contains(&device.ordinal)
    }

    /// Clears the set.
    pub(crate) fn clear(&self) {
        lock(&self.0).clear();
    }
}
