//! Network namespaces, as machines of a test.

use std::process::{self, Command};

/// Whether this user can make network namespaces; otherwise prints that the test is skipped.
pub fn may_make() -> bool {
    let may = Command::new("unshare").args(["--net", "--uts", "true"]).output();
    let may = may.is_ok_and(|tried| tried.status.success()) && Command::new("ip").arg("netns").output().is_ok();
    if !may {
        println!("skipped: this user can't make network namespaces, or there is no `ip`");
    }
    may
}

/// Namespaces with this prefix in their names, removed on drop.
#[derive(Debug)]
pub struct Namespaces(String);

impl Namespaces {
    /// Makes namespaces by a shell script, which gets the prefix as `$1`.
    ///
    /// # Panics
    /// The script fails.
    pub fn make(name: &str, script: &str) -> Self {
        let made = Self(format!("disco-{name}-{}-", process::id()));
        let ran = Command::new("sh").args(["-euc", script, "sh", &made.0]).output();
        assert!(ran.as_ref().is_ok_and(|ran| ran.status.success()), "{ran:?}");
        made
    }

    /// The whole name of a namespace.
    pub fn name(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    /// A program in a namespace.
    pub fn command(&self, name: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(name)]).arg(program);
        command
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let script = "for name in $(ip netns list | cut -d' ' -f1 | grep \"^$1\"); do \
                      ip netns pids $name | xargs -r kill -9; ip netns delete $name; done";
        _ = Command::new("sh").args(["-c", script, "sh", &self.0]).status();
    }
}
