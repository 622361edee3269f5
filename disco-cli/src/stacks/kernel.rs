//! Facts that the system reports of a thread without stopping it.

use std::fs;

/// System calls in which threads wait. Any other system call is shown by its number.
const CALLS: [(libc::c_long, &str); 16] = [
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
    (libc::SYS_connect, "connect"),
    (libc::SYS_epoll_pwait, "epoll_pwait"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_ioctl, "ioctl"),
    (libc::SYS_nanosleep, "nanosleep"),
    (libc::SYS_ppoll, "ppoll"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_read, "read"),
    (libc::SYS_recvfrom, "recvfrom"),
    (libc::SYS_recvmsg, "recvmsg"),
    // A wait that goes on after a stop.
    (libc::SYS_restart_syscall, "restart_syscall"),
    (libc::SYS_sendmsg, "sendmsg"),
    (libc::SYS_sendto, "sendto"),
    (libc::SYS_wait4, "wait4"),
    (libc::SYS_write, "write"),
];

/// The state of a thread: `running`, or the system call in which it waits, like `sleeping in futex (futex_do_wait)`.
pub(super) fn state(process: u32, thread: u32) -> String {
    let read = |file: &str| fs::read_to_string(format!("/proc/{process}/task/{thread}/{file}"));
    let Ok(stat) = read("stat") else { return "ended".to_owned() };
    // The name of the thread, in parentheses, may have any characters.
    let mut text = match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some('R') => return "running".to_owned(),
        Some('S') => "sleeping",
        Some('D') => "waiting for the system, not to be interrupted,",
        Some('T') => "stopped by a signal",
        Some('t') => "stopped by a debugger",
        Some('Z' | 'X') => return "ended".to_owned(),
        _ => "in an unknown state",
    }
    .to_owned();
    // Both are readable for debuggers only; else the first is an error and the second `0`.
    if let Ok(call) = read("syscall").as_deref().map(call) {
        text += &call.map_or_else(String::new, |call| format!(" in {call}"));
    }
    if let Some(place) = read("wchan").ok().filter(|place| !matches!(place.as_str(), "" | "0")) {
        text += &format!(" ({place})");
    }
    text
}

/// The system call in a text like `202 0x7f… …`; none in `running` and `-1 …`.
fn call(text: &str) -> Option<String> {
    let number: libc::c_long = text.split_ascii_whitespace().next()?.parse().ok().filter(|number| *number >= 0)?;
    let known = CALLS.iter().find(|(known, _)| *known == number);
    Some(known.map_or_else(|| format!("system call {number}"), |(_, name)| (*name).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_thread_names_its_system_call() {
        assert_eq!(call(&format!("{} 0x7f 0x80 0x0", libc::SYS_futex)).unwrap(), "futex");
        assert_eq!(call("9999 0x7f").unwrap(), "system call 9999");
        assert_eq!((call("running"), call("-1 0x7f 0x80"), call("")), (None, None, None));
    }
}
