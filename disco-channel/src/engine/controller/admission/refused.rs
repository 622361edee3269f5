//! Who was sent away, and what is said of it: anybody may come, as often as they like.

use std::fmt;
use std::time::{Duration, Instant};

use disco_core::Error;

/// How many are told of when nodes are missing, and how many of these may be without the token.
const TOLD: usize = 16;
const TOLD_WITHOUT_TOKEN: usize = 3;
/// How often those are logged who have not proved that they have the token.
const PAUSE: Duration = Duration::from_secs(1);

/// Those who were sent away.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Some of them, and why.
    told: Vec<(String, Standing)>,
    /// How many are not told of.
    untold: usize,
    /// When one who has proved nothing was logged last, and how many were not since.
    logged: Option<Instant>,
    others: usize,
}

/// How far one has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// It did not speak as a node.
    Stranger,
    /// It did, and has not proved that it has the token.
    Unproved,
    /// It has the token.
    Proved,
}

impl Refused {
    /// Another one.
    pub(super) fn add(&mut self, name: &str, error: &Error, standing: Standing, now: Instant) {
        let text = format!("{name}: {error}");
        if self.told.iter().any(|(told, _)| *told == text) {
            return;
        }
        self.log(name, error, standing, now);
        // One that comes again, from another port.
        let host = |name: &str| name.rsplit_once(':').map(|(host, _)| host.to_owned());
        let is_again = |told: &String| {
            told.strip_suffix(&format!(": {error}"))
                .is_some_and(|told| host(told) == host(name) && host(name).is_some())
        };
        if standing < Standing::Proved && self.told.iter().any(|(told, _)| is_again(told)) {
            return;
        }
        self.keep(text, standing);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    fn log(&mut self, name: &str, error: &Error, standing: Standing, now: Instant) {
        match standing {
            Standing::Proved => tracing::warn!(from = name, %error, "sent away"),
            Standing::Stranger => tracing::debug!(from = name, %error, "sent away"),
            Standing::Unproved if self.is_quiet(now) => self.others += 1,
            Standing::Unproved => {
                let others = std::mem::take(&mut self.others);
                tracing::warn!(from = name, %error, others, "sent away");
                self.logged = Some(now);
            }
        }
    }

    fn is_quiet(&self, now: Instant) -> bool {
        self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < PAUSE)
    }

    /// One takes the place of another who has not come as far. Only of those with the token, the oldest makes room for the next.
    fn keep(&mut self, text: String, standing: Standing) {
        let without_token = self.told.iter().filter(|(_, told)| *told < Standing::Proved);
        let is_full = standing < Standing::Proved && without_token.clone().count() == TOLD_WITHOUT_TOKEN;
        if is_full || self.told.len() == TOLD {
            self.untold += 1;
            let least = without_token.map(|(_, told)| *told).min();
            let place = match least.filter(|least| *least < standing) {
                Some(least) => self.told.iter().rposition(|(_, told)| *told == least),
                None if standing == Standing::Proved => Some(0),
                None => None,
            };
            let Some(place) = place else { return };
            self.told.remove(place);
        }
        self.told.push((text, standing));
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told: Vec<&str> = self.told.iter().map(|(why, _)| why.as_str()).collect();
        f.write_str(&told.join("; "))?;
        match self.untold {
            0 => Ok(()),
            untold => write!(f, "; and {untold} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of those who came.
    fn told(came: &[(&str, Standing)]) -> String {
        let (mut refused, now) = (Refused::default(), Instant::now());
        came.iter().for_each(|(name, standing)| refused.add(name, &Error::invalid("no"), *standing, now));
        refused.to_string()
    }

    #[test]
    fn whoever_has_not_the_token_takes_no_place_of_one_who_has() {
        let [stranger, unproved, proved] = [Standing::Stranger, Standing::Unproved, Standing::Proved];
        let mut came = vec![("a", proved), ("b", unproved), ("c", stranger)];
        assert_eq!(told(&came), "a: no; b: no; c: no");
        came.extend([("d", unproved), ("e", unproved), ("f", stranger)]);
        assert_eq!(told(&came), "a: no; b: no; d: no; e: no; and 2 more");
        came.extend([("g", proved), ("h", proved), ("i", unproved)]);
        assert_eq!(told(&came), "a: no; b: no; d: no; e: no; g: no; h: no; and 3 more");
        let others = ["j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v"].map(|name| (name, proved));
        came.extend(others);
        let names = |names: &str| names.chars().map(|name| format!("{name}: no; ")).collect::<String>();
        assert_eq!(told(&came), names("aghjklmnopqrstuv") + "and 6 more");
        came.extend([("w", proved), ("w", proved), ("x", unproved)]);
        assert_eq!(told(&came), names("ghjklmnopqrstuvw") + "and 8 more");
    }

    #[test]
    fn of_those_without_the_token_one_that_comes_again_is_told_of_once() {
        let [unproved, proved] = [Standing::Unproved, Standing::Proved];
        let came = [("10.0.0.1:7", unproved), ("10.0.0.1:8", unproved), ("10.0.0.2:8", unproved)];
        assert_eq!(told(&came), "10.0.0.1:7: no; 10.0.0.2:8: no");
        let came = [("a at 10.0.0.1:7", proved), ("a at 10.0.0.1:8", proved)];
        assert_eq!(told(&came), "a at 10.0.0.1:7: no; a at 10.0.0.1:8: no");
    }

    #[test]
    fn of_a_flood_one_a_second_is_logged_and_the_rest_are_counted() {
        let (mut refused, now) = (Refused::default(), Instant::now());
        let names: Vec<String> = (0..100).map(|index| format!("127.0.0.1:{index}")).collect();
        let error = Error::invalid("its token is another");
        names.iter().for_each(|name| refused.add(name, &error, Standing::Unproved, now));
        assert_eq!(refused.others, 99);
        refused.add("another", &error, Standing::Unproved, now + PAUSE);
        assert_eq!(refused.others, 0);
    }
}
