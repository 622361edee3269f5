//! Who was sent away, and what is said of it: anybody may come, as often as they like.

use std::fmt;
use std::time::{Duration, Instant};

use disco_core::Error;

/// How many are told of when nodes are missing.
const TOLD: usize = 3;
/// How often those are logged who have not proved that they have the token.
const PAUSE: Duration = Duration::from_secs(1);

/// Those who were sent away.
#[derive(Debug, Default)]
pub(super) struct Refused {
    /// Some of them, and why.
    told: Vec<(String, Standing)>,
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
        let least = self.told.iter().map(|(_, standing)| *standing).min();
        let place = match least {
            Some(Standing::Proved) if standing == Standing::Proved => Some(0),
            Some(least) if standing > least => self.told.iter().rposition(|(_, standing)| *standing == least),
            _ => None,
        };
        if self.told.len() == TOLD {
            let Some(place) = place else { return };
            self.told.remove(place);
        }
        self.told.push((text, standing));
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told: Vec<&str> = self.told.iter().map(|(why, _)| why.as_str()).collect();
        f.write_str(&told.join("; "))
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
        assert_eq!(told(&came), "a: no; b: no; d: no");
        came.extend([("g", proved), ("h", proved), ("i", unproved)]);
        assert_eq!(told(&came), "a: no; g: no; h: no");
        came.extend([("j", proved), ("j", proved)]);
        assert_eq!(told(&came), "g: no; h: no; j: no");
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
