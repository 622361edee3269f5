//! Hosts that a real ssh reaches by a real sshd, and the processes on them.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use disco_conformance::{Fetched, Required, waiting};
use rustix::process::{Pid, Signal, kill_process};

use super::super::{Folder, PROGRAM, disco, err, hello};

/// Hosts `alpha` and `beta`, which are this machine: ssh starts an sshd for each connection. `cut` has no network, `closed` no
/// sshd, `denied` no key of the client, and `stranger` no known key.
pub(super) struct Hosts {
    pub(super) folder: Folder,
    ssh: String,
    /// The value of `LD_LIBRARY_PATH`.
    libraries: String,
}

impl Hosts {
    /// Prints why there are none, or panics if they are required.
    pub(super) fn new(name: &str) -> Option<Self> {
        let is_installed = Path::new("/usr/sbin/sshd").exists() && Command::new("ssh").arg("-V").output().is_ok();
        let root =
            if is_installed { PathBuf::from("/") } else { Fetched::new("debian-openssh").required_by("ssh").find()? };
        let hosts = Self::in_root(name, &root);
        let tried = hosts.command("alpha").arg("true").output().unwrap();
        if tried.status.success() {
            return Some(hosts);
        }
        let why = format!("sshd does not work here: {}", err(&tried));
        assert!(!Required::from_env().contains("ssh"), "DISCO_REQUIRE: {why}");
        println!("skipped: {why}");
        None
    }

    fn in_root(name: &str, root: &Path) -> Self {
        let folder = Folder::new(&format!("hosts-{name}"));
        let libraries =
            ["usr/lib", "lib"].map(|path| root.join(path).join("x86_64-linux-gnu").display().to_string()).join(":");
        // Of the packages that the machine has, none is fetched.
        let program = |path| Some(root.join(path)).filter(|own| own.exists()).unwrap_or(Path::new("/").join(path));
        let [ssh, keygen, sshd] = ["usr/bin/ssh", "usr/bin/ssh-keygen", "usr/sbin/sshd"].map(program);
        let at = |name: &str| folder.0.join(name);
        for key in ["host", "id"] {
            let mut command = Command::new(&keygen);
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(at(key)).env("LD_LIBRARY_PATH", &libraries);
            assert!(command.status().unwrap().success());
        }
        let host_key = fs::read_to_string(at("host.pub")).unwrap();
        fs::write(at("known"), format!("machine {host_key}")).unwrap();
        let path = folder.0.display();
        let server = format!(
            "HostKey {path}/host\nAuthorizedKeysFile {path}/id.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        );
        fs::write(at("sshd_config"), server).unwrap();
        // As root, sshd needs a user and a folder of its own; only it and the program see these.
        let sshd = format!("{} -i -f {path}/sshd_config -E {path}/log", sshd.display());
        let script = format!(
            "#!/bin/sh\n[ $(id -u) = 0 ] || exec {sshd}\nexec unshare --mount sh -c '{{ cat /etc/passwd; \
             echo sshd:x:65534:65534::/run/sshd:/bin/false; }} >{path}/passwd.$$ && mount --bind {path}/passwd.$$ /etc/passwd && \
             mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec {sshd}'\n"
        );
        fs::write(at("connect"), script).unwrap();
        fs::set_permissions(at("connect"), fs::Permissions::from_mode(0o755)).unwrap();
        let client = format!(
            "Host alpha beta denied stranger\n ProxyCommand {path}/connect\nHost cut\n ProxyCommand unshare --net {path}/connect\n\
             Host closed\n HostName 127.0.0.1\n Port 1\nHost stranger\n UserKnownHostsFile /dev/null\n\
             Host denied\n IdentityFile {path}/none\nHost * !denied\n IdentityFile {path}/id\n\
             Host *\n IdentitiesOnly yes\n IdentityAgent none\n HostKeyAlias machine\n UserKnownHostsFile {path}/known\n \
             GlobalKnownHostsFile /dev/null\n StrictHostKeyChecking yes\n"
        );
        fs::write(at("ssh_config"), client).unwrap();
        let ssh = format!("{} -F {path}/ssh_config", ssh.display());
        Self { ssh, libraries, folder }
    }

    /// The path of ssh.
    pub(super) fn ssh_program(&self) -> &str {
        self.ssh.split(' ').next().unwrap()
    }

    /// The command ssh to a host.
    fn command(&self, host: &str) -> Command {
        let mut words = self.ssh.split(' ');
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(["-oBatchMode=yes", host]).env("LD_LIBRARY_PATH", &self.libraries);
        command
    }

    /// `disco run` with these options, of the program `program` of this file.
    pub(super) fn disco(&self, program: &str, options: &[&str]) -> Command {
        let mut run = disco();
        run.env(PROGRAM, program).env("DISCO_SSH", &self.ssh).env("LD_LIBRARY_PATH", &self.libraries);
        run.arg("run").args(options).stdin(Stdio::null());
        run
    }

    /// The output of `disco run --hosts` for the program `hello`.
    pub(super) fn run(&self, options: &[&str]) -> Output {
        self.disco("hello", options).arg("--").arg(hello()).output().unwrap()
    }

    /// The errors of `disco run`, which fails.
    pub(super) fn failure(&self, options: &[&str]) -> String {
        let output = self.run(options);
        assert!(!output.status.success(), "{output:?}");
        err(&output)
    }

    /// A word that only the processes of this session have in their command lines or environments.
    pub(super) fn word(&self) -> String {
        self.folder.0.file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// Starts a session on `alpha` and this machine, whose workers are inside a function.
    pub(super) fn dozing(&self) -> Child {
        let mut run = self.disco("doze", &["--hosts", "localhost,alpha"]);
        let run = run.arg("--").arg(hello()).arg(self.word()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = run.spawn().unwrap();
        let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "started");
        run
    }

    /// Waits until no process of this session is left.
    pub(super) fn wait_for_end(&self) {
        let is_ours = |process: &Process| process.has(&self.word());
        waiting::wait_until("the end of all processes", || !processes().iter().any(is_ours));
    }
}

/// A process of this machine.
pub(super) struct Process {
    id: i32,
    pub(super) command_line: String,
    pub(super) environment: String,
}

impl Process {
    pub(super) fn has(&self, word: &str) -> bool {
        self.command_line.contains(word) || self.environment.contains(word)
    }

    pub(super) fn kill(&self) {
        kill_process(Pid::from_raw(self.id).unwrap(), Signal::KILL).unwrap();
    }
}

/// The processes that this user may look at.
pub(super) fn processes() -> Vec<Process> {
    let read = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let text = |name| Some(String::from_utf8_lossy(&fs::read(entry.path().join(name)).ok()?).replace('\0', "\n"));
        Some(Process { id, command_line: text("cmdline")?, environment: text("environ")? })
    };
    fs::read_dir("/proc").unwrap().flatten().filter_map(read).filter(|it| it.id != std::process::id() as i32).collect()
}
