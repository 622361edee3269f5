//! Access of devices to the memory of other devices.

use std::ptr;

use crate::common::child::alone;
use crate::common::{OK, allocate, enter, set, use_device};
use disco_gpu_double::cuda::abi::{Code, Context};
use disco_gpu_double::cuda::exports::context::cuCtxGetCurrent;
use disco_gpu_double::cuda::exports::copy::cuMemcpyDtoDAsync_v2;
use disco_gpu_double::cuda::exports::device::cuInit;
use disco_gpu_double::cuda::exports::peer::{cuCtxEnablePeerAccess, cuDeviceCanAccessPeer};
use disco_gpu_double::cuda::exports::stream::cuStreamSynchronize;
use disco_gpu_double::cuda::exports::word::cuStreamWriteValue32_v2;

fn context() -> Context {
    let mut context = ptr::null_mut();
    assert_eq!(cuCtxGetCurrent(Some(&mut context)), OK);
    context
}

#[test]
fn devices_have_access_once_it_is_enabled() {
    alone(|| {
        assert_eq!(cuInit(0), OK);
        let can = |device, peer| {
            let mut can = 9;
            (cuDeviceCanAccessPeer(Some(&mut can), device, peer), can)
        };
        assert_eq!([can(0, 1), can(3, 2), can(1, 1)], [(OK, 1), (OK, 1), (OK, 0)]);
        assert_eq!(can(0, 4), (Code::INVALID_DEVICE, 9));

        let peers = use_device(1);
        let (peer, pointer) = (context(), allocate(8));
        let stream = use_device(0);
        let own = allocate(8);
        assert_eq!(cuCtxEnablePeerAccess(peer, 1), Code::INVALID_VALUE);
        assert_eq!(cuCtxEnablePeerAccess(ptr::null_mut(), 0), Code::INVALID_CONTEXT);
        assert_eq!(cuCtxEnablePeerAccess(context(), 0), Code::INVALID_DEVICE);
        set(c"GPU_DOUBLE_PEER_ACCESS", c"0");
        assert_eq!((can(0, 1), cuCtxEnablePeerAccess(peer, 0)), ((OK, 0), Code::PEER_ACCESS_UNSUPPORTED));
        set(c"GPU_DOUBLE_PEER_ACCESS", c"1");

        assert_eq!(cuMemcpyDtoDAsync_v2(own, pointer, 8, stream), OK, "copies need no peer access");
        assert_eq!(cuStreamSynchronize(stream), OK);
        assert_eq!([cuCtxEnablePeerAccess(peer, 0), cuStreamWriteValue32_v2(stream, pointer, 1, 0)], [OK; 2]);
        assert_eq!(cuStreamSynchronize(stream), OK);
        assert_eq!(cuCtxEnablePeerAccess(peer, 0), Code::PEER_ACCESS_ALREADY_ENABLED);
        assert_eq!(cuStreamWriteValue32_v2(peers, own, 1, 0), OK, "access in the other direction is not enabled");
        assert_eq!(cuStreamSynchronize(stream), OK);

        enter(1);
        assert_eq!(cuStreamSynchronize(peers), Code::ILLEGAL_ADDRESS);
    });
}
