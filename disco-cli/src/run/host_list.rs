//! The hosts of `--hosts` and of a hostfile.

use std::fmt;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, anyhow, bail, ensure};

/// A machine that ssh reaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// The name for ssh: a name, an address or an alias of its configuration, perhaps with the user in front: `user@host`.
    pub(super) name: String,
    /// Number of workers, if it is given.
    pub(super) workers: Option<usize>,
}

impl Host {
    /// Whether it is the machine of this process: `localhost`, an address of the loopback, or the name of the machine,
    /// without a user.
    fn is_here(&self) -> bool {
        let machine = rustix::system::uname();
        let machine = machine.nodename().to_string_lossy();
        let short = machine.split('.').next().unwrap_or_default();
        ["localhost", "127.0.0.1", "::1", &machine, short].contains(&self.name.as_str())
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// `HOST` or `HOST:WORKERS`, where an IPv6 address has brackets.
impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, rest) = match text.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, text),
        };
        let (host, workers) = match rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, workers)) => match workers.strip_prefix(':') {
                Some(workers) => (host, Some(workers)),
                None => return Err(format!("`{text}`: `{workers}` follows the bracket; write [ADDRESS]:WORKERS")),
            },
            None if rest.matches(':').count() > 1 => {
                return Err(format!("`{text}`: an IPv6 address needs brackets, as in [{rest}]"));
            }
            None => rest.split_once(':').map_or((rest, None), |(host, workers)| (host, Some(workers))),
        };
        let is_plain = |name: &str, more: &str| {
            // ssh would take a name that begins with `-` for an option.
            let is_allowed = |letter: char| letter.is_alphanumeric() || more.contains(letter);
            !name.is_empty() && !name.starts_with('-') && name.chars().all(is_allowed)
        };
        if !is_plain(host, "-._:%") || user.is_some_and(|user| !is_plain(user, "-._+")) {
            return Err(format!(
                "`{text}` is no host: expected HOST, USER@HOST or HOST:WORKERS, of letters, digits, `.`, `-` and `_`"
            ));
        }
        let workers = workers.map(|workers| match workers.parse() {
            Ok(0) => Err(format!("`{text}`: a host has at least 1 worker")),
            Ok(workers) => Ok(workers),
            Err(_) => Err(format!("`{text}`: `{workers}` is no number of workers")),
        });
        let name = user.map_or(host.to_owned(), |user| format!("{user}@{host}"));
        Ok(Self { name, workers: workers.transpose()? })
    }
}

/// Reads a hostfile: a host in each line, as `HOST`, `HOST:WORKERS` or `HOST slots=WORKERS`. `#` begins a comment.
///
/// # Errors
/// The file can't be read, or a line is wrong; the error names the file and the line.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Host>> {
    let file = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("hostfile {file}"))?;
    let mut hosts = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(first) = words.next() else { continue };
        let wrong = |why: String| anyhow!("hostfile {file}, line {}: {why}", index + 1);
        let mut host: Host = first.parse().map_err(wrong)?;
        for word in words {
            let slots = word.strip_prefix("slots=").and_then(|slots| slots.parse().ok().filter(|slots| *slots > 0));
            match (slots, host.workers) {
                (Some(slots), None) => host.workers = Some(slots),
                (Some(_), Some(_)) => return Err(wrong(format!("`{word}`: the number of workers is there twice"))),
                (None, _) => return Err(wrong(format!("`{word}`: expected slots=WORKERS, at least 1"))),
            }
        }
        hosts.push(host);
    }
    ensure!(!hosts.is_empty(), "hostfile {file} names no host");
    Ok(hosts)
}

/// The machines of a session: each has as many workers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Machines {
    /// Whether this machine is among the hosts, as node 0.
    pub(super) has_here: bool,
    /// The other machines, in their order.
    pub(super) others: Vec<Host>,
    /// Number of workers of all machines together, if numbers are given.
    pub(super) workers: Option<usize>,
}

impl Machines {
    /// The machines of `hosts`. The numbers of workers of a host that is listed several times are added; an entry without
    /// a number counts as 1 if another host has a number, or if its host is listed several times.
    ///
    /// # Errors
    /// The hosts have different numbers of workers; the error names two of them.
    pub(super) fn new(hosts: Vec<Host>) -> anyhow::Result<Self> {
        let mut merged: Vec<Host> = Vec::new();
        for host in hosts {
            match merged.iter_mut().find(|other| other.name == host.name || other.is_here() && host.is_here()) {
                Some(other) => other.workers = Some(other.workers.unwrap_or(1) + host.workers.unwrap_or(1)),
                None => merged.push(host),
            }
        }
        let mut workers = None;
        if merged.iter().any(|host| host.workers.is_some()) {
            let count = |host: &Host| host.workers.unwrap_or(1);
            let first = &merged[0];
            if let Some(other) = merged.iter().find(|host| count(host) != count(first)) {
                bail!(
                    "host {first} has {}, and host {other} has {}: all hosts of a session have the same number of workers",
                    of_workers(count(first)),
                    of_workers(count(other))
                );
            }
            workers = Some(merged.len() * count(first));
        }
        let (here, others): (Vec<_>, Vec<_>) = merged.into_iter().partition(Host::is_here);
        Ok(Self { has_here: !here.is_empty(), others, workers })
    }

    /// Number of machines with workers.
    pub(super) fn count(&self) -> usize {
        self.others.len() + usize::from(self.has_here)
    }
}

fn of_workers(count: usize) -> String {
    format!("{count} worker{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machines(hosts: &str) -> Result<Machines, String> {
        let hosts = hosts.split(',').map(str::parse).collect::<Result<_, String>>()?;
        Machines::new(hosts).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_have_a_user_an_address_and_a_number_of_workers() {
        let host = |text: &str| text.parse().map(|Host { name, workers }| (name, workers));
        assert_eq!(host("a"), Ok(("a".into(), None)));
        assert_eq!(host("me@a.example.org:4"), Ok(("me@a.example.org".into(), Some(4))));
        assert_eq!(host("[fd00::1]"), Ok(("fd00::1".into(), None)));
        assert_eq!(host("me@[fe80::1%eth0]:2"), Ok(("me@fe80::1%eth0".into(), Some(2))));
        for (wrong, why) in [
            ("", "`` is no host"),
            ("-oProxyCommand=x", "`-oProxyCommand=x` is no host"),
            ("-l@a", "`-l@a` is no host"),
            ("a b", "`a b` is no host"),
            ("$(x)", "`$(x)` is no host"),
            ("fd00::1", "`fd00::1`: an IPv6 address needs brackets, as in [fd00::1]"),
            ("[::1]4", "`[::1]4`: `4` follows the bracket"),
            ("a:0", "`a:0`: a host has at least 1 worker"),
            ("a:x", "`a:x`: `x` is no number of workers"),
        ] {
            let error = host(wrong).unwrap_err();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn repeated_hosts_add_up_and_unequal_hosts_are_refused_by_name() {
        let sizes = |hosts: &str| machines(hosts).map(|it| (it.count(), it.has_here, it.workers));
        assert_eq!(sizes("a,b"), Ok((2, false, None)));
        assert_eq!(sizes("localhost,b,c"), Ok((3, true, None)));
        assert_eq!(sizes("b:2,localhost:2"), Ok((2, true, Some(4))));
        assert_eq!(sizes("b,b,c,c"), Ok((2, false, Some(4))));
        assert_eq!(sizes("localhost,127.0.0.1"), Ok((1, true, Some(2))));
        let refused =
            "host a has 1 worker, and host b has 4 workers: all hosts of a session have the same number of workers";
        assert_eq!(sizes("a,b:4"), Err(refused.into()));
        assert_eq!(
            machines("c,localhost,b").unwrap().others.iter().map(|it| it.name.as_str()).collect::<Vec<_>>(),
            ["c", "b"]
        );
    }

    #[test]
    fn a_hostfile_is_read_and_a_wrong_line_is_named() {
        let path = std::env::temp_dir().join(format!("disco-hostfile-{}", std::process::id()));
        let read = |text: &str| {
            fs::write(&path, text).unwrap();
            read(&path).map_err(|error| error.to_string())
        };
        let hosts = read("# the rack\na slots=4\n\nb:4 # the second\n[fd00::1]  slots=4\n").unwrap();
        assert_eq!(hosts.iter().map(|host| host.workers).collect::<Vec<_>>(), [Some(4); 3]);
        assert_eq!(hosts[2].name, "fd00::1");
        let file = path.display();
        for (text, why) in [
            (
                "a\nb max_slots=4\n",
                format!("hostfile {file}, line 2: `max_slots=4`: expected slots=WORKERS, at least 1"),
            ),
            ("a slots=0", format!("hostfile {file}, line 1: `slots=0`: expected slots=WORKERS, at least 1")),
            ("a:2 slots=2", format!("hostfile {file}, line 1: `slots=2`: the number of workers is there twice")),
            ("# none\n", format!("hostfile {file} names no host")),
        ] {
            assert_eq!(read(text), Err(why));
        }
        fs::remove_file(&path).unwrap();
    }
}
