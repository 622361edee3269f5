//! Launches whose peers do not arrive: timeouts, aborts and failure reports.

use crate::common::child::alone;
use std::ffi::CStr;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::member::{LONG_TIMEOUT_NS, Member, STATUS, devices, members, write};
use crate::common::{OK, TEST_TIMEOUT, params, settle};
use disco_gpu_double::cuda::abi::Code;
use disco_gpu_double::cuda::exports::stream::cuStreamQuery;

const ONE_SHOT: &CStr = c"disco_one_shot_f32";
const BARRIER: &CStr = c"disco_barrier";

#[test]
fn a_missing_peer_is_reported() {
    alone(|| {
        devices();
        let mut members = members(3, 4);
        let timeout = Duration::from_millis(200);
        members.iter_mut().for_each(|member| member.params.timeout_ns = timeout.as_nanos() as u64);
        let start = Instant::now();
        thread::scope(|scope| {
            for member in &members[..2] {
                scope.spawn(|| {
                    member.enter();
                    member.put(&[1; 64]);
                    assert_eq!((member.launch(ONE_SHOT, 2, 32), member.synchronize()), (OK, OK));
                    // Cause deadline, phase leading, rank 2, block 0.
                    assert_eq!((member.report(), member.state(STATUS)), (0x0101_0200, 0x0101_0200));
                    assert_eq!(member.output(), [0xa5; 64], "nothing comes out");
                });
            }
        });
        assert!(start.elapsed() >= timeout && start.elapsed() < TEST_TIMEOUT);
        // From now on ranks 0 and 1 make no handshakes, so rank 2 reaches its timeout.
        members[0].params.timeout_ns = LONG_TIMEOUT_NS;
        let (one, last) = (&members[0], &members[2]);
        last.enter();
        let flags = [0, 1].map(|peer| last.state(128 * peer));
        assert_eq!(flags, [1, 1], "both ranks have reached the handshake");
        one.enter();
        let start = Instant::now();
        assert_eq!((one.launch(BARRIER, 1, 32), one.synchronize()), (OK, OK));
        assert!(start.elapsed() < TEST_TIMEOUT, "it does not wait");
        assert_eq!(one.report(), 0x0101_0200, "the first is what is reported");
        last.enter();
        assert_eq!(last.state(0), 1, "it has not come to another");
        assert_eq!(
            (last.launch(BARRIER, 1, 32), last.synchronize(), last.report()),
            (OK, OK, 0),
            "it takes those for this"
        );
        assert_eq!((last.launch(BARRIER, 1, 32), last.synchronize(), last.report()), (OK, OK, 0x0104_0000));
        members.into_iter().for_each(Member::end);
    });
}

#[test]
fn the_abort_flag_ends_a_launch() {
    alone(|| {
        devices();
        let members = members(2, 4);
        let one = &members[1];
        one.enter();
        assert_eq!(one.launch(BARRIER, 1, 32), OK);
        settle();
        assert_eq!((cuStreamQuery(one.stream), one.report()), (Code::NOT_READY, 0));
        one.abort();
        assert_eq!(one.synchronize(), OK);
        // Cause aborted, phase alone, rank 0, block 0.
        assert_eq!(one.report(), 0x0204_0000);
        members.into_iter().for_each(Member::end);
    });
}

#[test]
fn a_failure_names_the_phase_of_its_handshake() {
    alone(|| {
        devices();
        let mut members = members(2, 4);
        let one = &mut members[0];
        one.params.timeout_ns = 30_000_000;
        one.enter();
        let (state, line) = (one.params.state[0], 128);
        // Simulates that rank 1 has reached the leading handshake of block 0, and then also the mid handshake.
        for (come, report) in [(1_u32, 0x0102_0100), (2, 0x0103_0100)] {
            write(state, &[0; params::STATE_BYTES]);
            write(state + line, &come.to_le_bytes());
            assert_eq!((one.launch(c"disco_two_shot_f32", 1, 32), one.synchronize()), (OK, OK));
            assert_eq!(one.report(), report);
            one.clear_report();
        }
        members.into_iter().for_each(Member::end);
    });
}
