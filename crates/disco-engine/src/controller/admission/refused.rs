//! Refused connections, for messages and logs. Bounded, since anyone may connect at any rate.

use std::fmt;
use std::time::{Duration, Instant};

use disco_core::Error;

/// Refusals that an error lists.
const MAX_REASONS: usize = 16;
/// Refusals of connections without the token among these.
const MAX_REASONS_WITHOUT_TOKEN: usize = 3;
/// Least interval between log lines on connections that have not proved that they have the token.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The refused connections.
#[derive(Debug)]
pub(super) struct Refused {
    /// Gets each refused node that has the token.
    report: fn(&str),
    /// The refusals that an error lists.
    reasons: Vec<Reason>,
    /// Number of refusals that are not listed.
    unlisted: usize,
    /// When an unauthenticated connection was logged last.
    logged: Option<Instant>,
    /// Unauthenticated connections that were not logged since.
    others: usize,
}

/// A refused connection that an error lists.
#[derive(Debug)]
struct Reason {
    name: String,
    error: String,
    standing: Standing,
}

/// How far a connection came in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It sent no answer of the Disco protocol.
    Unidentified,
    /// It sent an answer without a valid proof.
    Unproved,
    /// It has proved that it has the token.
    Proved,
}

impl Refused {
    pub(super) fn new(report: fn(&str)) -> Self {
        Self { report, reasons: Vec::new(), unlisted: 0, logged: None, others: 0 }
    }

    /// Adds a refused connection.
    pub(super) fn add(&mut self, name: &str, error: &Error, standing: Standing, now: Instant) {
        let reason = Reason { name: name.to_owned(), error: error.to_string(), standing };
        let is_equal = |other: &Reason| other.error == reason.error;
        if self.reasons.iter().any(|other| other.name == reason.name && is_equal(other)) {
            return;
        }
        self.log(name, error, standing, now);
        // The same host may retry from another port.
        let is_again =
            |other: &Reason| is_equal(other) && host(name).is_some_and(|host| self::host(&other.name) == Some(host));
        if standing < Standing::Proved && self.reasons.iter().any(is_again) {
            return;
        }
        self.keep(reason);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.reasons.is_empty()
    }

    fn log(&mut self, name: &str, error: &Error, standing: Standing, now: Instant) {
        match standing {
            Standing::Proved => {
                tracing::warn!(from = name, %error, "a connection was refused");
                (self.report)(&format!("node {name} is refused: {error}"));
            }
            Standing::Unidentified => tracing::debug!(from = name, %error, "a connection was refused"),
            Standing::Unproved if self.is_quiet(now) => self.others += 1,
            Standing::Unproved => {
                let others = std::mem::take(&mut self.others);
                tracing::warn!(from = name, %error, others, "a connection was refused");
                self.logged = Some(now);
            }
        }
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_INTERVAL)
    }

    /// Lists a refusal. In a full list it replaces one whose connection came less far; a connection with the token
    /// replaces the oldest.
    fn keep(&mut self, reason: Reason) {
        let standing = reason.standing;
        let without_token =
            self.reasons.iter().map(|reason| reason.standing).filter(|standing| *standing < Standing::Proved);
        let is_full = standing < Standing::Proved && without_token.clone().count() == MAX_REASONS_WITHOUT_TOKEN;
        if is_full || self.reasons.len() == MAX_REASONS {
            self.unlisted += 1;
            let least = without_token.min();
            let place = match least.filter(|least| *least < standing) {
                Some(least) => self.reasons.iter().rposition(|reason| reason.standing == least),
                None if standing == Standing::Proved => Some(0),
                None => None,
            };
            let Some(place) = place else { return };
            self.reasons.remove(place);
        }
        self.reasons.push(reason);
    }
}

/// The host of a connection without the token, whose name is the address of its peer.
#[allow(clippy::disallowed_methods, reason = "an address, HOST:PORT")]
fn host(name: &str) -> Option<&str> {
    name.rsplit_once(':').map(|(host, _)| host)
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.reasons.iter().map(|Reason { name, error, .. }| format!("{name}: {error}"));
        f.write_str(&reasons.collect::<Vec<_>>().join("; "))?;
        match self.unlisted {
            0 => Ok(()),
            unlisted => write!(f, "; and {unlisted} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// The text after these refusals.
    fn listed(came: &[(&str, Standing)]) -> String {
        let (mut refused, now) = (Refused::new(|_| {}), Instant::now());
        came.iter().for_each(|(name, standing)| refused.add(name, &Error::invalid("no"), *standing, now));
        refused.to_string()
    }

    #[test]
    fn a_connection_without_the_token_does_not_replace_one_with_it() {
        let [unidentified, unproved, proved] = [Standing::Unidentified, Standing::Unproved, Standing::Proved];
        let mut came = vec![("a", proved), ("b", unproved), ("c", unidentified)];
        assert_eq!(listed(&came), "a: no; b: no; c: no");
        came.extend([("d", unproved), ("e", unproved), ("f", unidentified)]);
        assert_eq!(listed(&came), "a: no; b: no; d: no; e: no; and 2 more");
        came.extend([("g", proved), ("h", proved), ("i", unproved)]);
        assert_eq!(listed(&came), "a: no; b: no; d: no; e: no; g: no; h: no; and 3 more");
        let others = ["j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v"].map(|name| (name, proved));
        came.extend(others);
        let names = |names: &str| names.chars().map(|name| format!("{name}: no; ")).collect::<String>();
        assert_eq!(listed(&came), names("aghjklmnopqrstuv") + "and 6 more");
        came.extend([("w", proved), ("w", proved), ("x", unproved)]);
        assert_eq!(listed(&came), names("ghjklmnopqrstuvw") + "and 8 more");
    }

    #[test]
    fn retries_of_a_host_without_the_token_are_listed_once() {
        let [unproved, proved] = [Standing::Unproved, Standing::Proved];
        let came = [("10.0.0.1:7", unproved), ("10.0.0.1:8", unproved), ("10.0.0.2:8", unproved)];
        assert_eq!(listed(&came), "10.0.0.1:7: no; 10.0.0.2:8: no");
        let came = [("a at 10.0.0.1:7", proved), ("a at 10.0.0.1:8", proved)];
        assert_eq!(listed(&came), "a at 10.0.0.1:7: no; a at 10.0.0.1:8: no");
    }

    thread_local! {
        static TOLD: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    }

    #[test]
    fn a_node_with_the_token_is_reported_when_it_is_refused_and_others_are_not() {
        let mut refused = Refused::new(|text| TOLD.with_borrow_mut(|told| told.push(text.to_owned())));
        let (now, error) = (Instant::now(), Error::refused("it runs another program"));
        for (name, standing) in [("a", Standing::Unidentified), ("b", Standing::Unproved), ("c", Standing::Proved)] {
            refused.add(name, &error, standing, now);
        }
        assert_eq!(TOLD.take(), ["node c is refused: it runs another program"]);
    }

    #[test]
    fn a_flood_is_logged_once_a_second_and_the_rest_is_counted() {
        let (mut refused, now) = (Refused::new(|_| {}), Instant::now());
        let names: Vec<String> = (0..100).map(|index| format!("127.0.0.1:{index}")).collect();
        let error = Error::invalid("its token does not match");
        names.iter().for_each(|name| refused.add(name, &error, Standing::Unproved, now));
        assert_eq!(refused.others, 99);
        refused.add("another", &error, Standing::Unproved, now + LOG_INTERVAL);
        assert_eq!(refused.others, 0);
    }
}
