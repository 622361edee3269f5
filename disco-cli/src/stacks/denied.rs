//! Why this process may not look into another one.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// The reason of `error`, with the remedy.
pub(super) fn describe(process: u32, error: &io::Error) -> String {
    if error.kind() != io::ErrorKind::PermissionDenied {
        return error.to_string();
    }
    format!("not permitted: {}", reason(process))
}

fn reason(process: u32) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_ascii_whitespace().next())
    };
    let own = rustix::process::geteuid().as_raw();
    if let Some(tracer) = field("TracerPid").filter(|tracer| *tracer != "0") {
        return format!("process {tracer} traces process {process} already, as a debugger");
    }
    if let Some(user) = field("Uid").filter(|user| own != 0 && *user != own.to_string()) {
        return format!("process {process} is one of user {user}; run this command as that user or as root");
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "1" if own != 0 => {
            return "the setting kernel.yama.ptrace_scope = 1 lets only root and the parents of a process look into it: run this \
                    command with sudo, or permit it until the next boot by `sudo sysctl kernel.yama.ptrace_scope=0`"
                .to_owned();
        }
        "2" if own != 0 => {
            return "the setting kernel.yama.ptrace_scope = 2 lets only root look into processes: run this command with sudo"
                .to_owned();
        }
        "3" => {
            return "the setting kernel.yama.ptrace_scope = 3 lets no process look into others until the next boot"
                .to_owned();
        }
        _ => {}
    }
    // The files of a process that may not be dumped are root's.
    let owner = fs::metadata(format!("/proc/{process}/mem")).map(|data| data.uid());
    if own != 0 && owner.is_ok_and(|owner| owner == 0) {
        return format!(
            "process {process} may not be dumped (prctl PR_SET_DUMPABLE, file capabilities or a set-user-id program); run \
             this command as root"
        );
    }
    "the system refuses ptrace: in a container, add the capability SYS_PTRACE (`docker run --cap-add SYS_PTRACE`)"
        .to_owned()
}
