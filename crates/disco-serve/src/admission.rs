//! Bounds on the requests that wait for their first token.
//!
//! A request reserves its seats before its prompt is tokenised, with an upper bound of its tokens, and corrects the bound
//! afterwards. So a burst of requests is bounded before it costs anything.

use std::sync::{Arc, Mutex, MutexGuard};

use crate::sync;

/// How much is reserved, and how much may be.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The most requests.
    requests: usize,
    /// The most tokens of prompts.
    tokens: usize,
    reserved: Mutex<Reserved>,
}

#[derive(Debug, Default)]
struct Reserved {
    requests: usize,
    tokens: usize,
}

/// The bound that a reservation exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// That on requests.
    #[error("{waiting} requests are waiting for their first token, and at most {limit} may")]
    Requests {
        /// Requests that wait.
        waiting: usize,
        /// The most that may wait.
        limit: usize,
    },
    /// That on tokens.
    #[error("prompts of up to {waiting} tokens are waiting, and at most {limit} tokens may")]
    Tokens {
        /// Tokens of the prompts that wait.
        waiting: usize,
        /// The most that may wait.
        limit: usize,
    },
}

/// A reservation, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Seats {
    admission: Arc<Admission>,
    requests: usize,
    tokens: usize,
}

impl Admission {
    pub(crate) fn new(requests: usize, tokens: usize) -> Arc<Self> {
        Arc::new(Self { requests, tokens, reserved: Mutex::default() })
    }

    /// Reserves seats for `requests` with prompts of at most `tokens` in all.
    ///
    /// If no tokens are reserved, any number is accepted: a prompt that is too long is refused after it was tokenised, for
    /// its length, and not because the server is busy.
    ///
    /// # Errors
    /// A bound is exceeded.
    pub(crate) fn reserve(self: &Arc<Self>, requests: usize, tokens: usize) -> Result<Seats, Full> {
        let mut reserved = self.reserved();
        let Reserved { requests: waiting, tokens: waiting_tokens } = *reserved;
        if waiting.saturating_add(requests) > self.requests {
            return Err(Full::Requests { waiting, limit: self.requests });
        }
        if waiting_tokens > 0 && waiting_tokens.saturating_add(tokens) > self.tokens {
            return Err(Full::Tokens { waiting: waiting_tokens, limit: self.tokens });
        }
        reserved.requests += requests;
        reserved.tokens = waiting_tokens.saturating_add(tokens);
        Ok(Seats { admission: self.clone(), requests, tokens })
    }

    fn reserved(&self) -> MutexGuard<'_, Reserved> {
        sync::lock(&self.reserved)
    }
}

impl Seats {
    /// Replaces the number of tokens by the true one.
    ///
    /// # Errors
    /// It is larger than the number before, and the bound is exceeded.
    pub(crate) fn correct(&mut self, tokens: usize) -> Result<(), Full> {
        let mut reserved = self.admission.reserved();
        let others = reserved.tokens.saturating_sub(self.tokens);
        if tokens > self.tokens && others > 0 && others.saturating_add(tokens) > self.admission.tokens {
            return Err(Full::Tokens { waiting: others, limit: self.admission.tokens });
        }
        reserved.tokens = others.saturating_add(tokens);
        drop(reserved);
        self.tokens = tokens;
        Ok(())
    }

    /// Takes the seat of one request with a prompt of `tokens` out of these.
    pub(crate) fn split(&mut self, tokens: usize) -> Seats {
        let tokens = tokens.min(self.tokens);
        let requests = self.requests.min(1);
        self.tokens -= tokens;
        self.requests -= requests;
        Seats { admission: self.admission.clone(), requests, tokens }
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        let mut reserved = self.admission.reserved();
        reserved.requests = reserved.requests.saturating_sub(self.requests);
        reserved.tokens = reserved.tokens.saturating_sub(self.tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reserved(admission: &Admission) -> (usize, usize) {
        let reserved = admission.reserved();
        (reserved.requests, reserved.tokens)
    }

    #[test]
    fn a_reservation_beyond_a_bound_reserves_nothing() {
        let admission = Admission::new(3, 100);
        let seats = admission.reserve(2, 60).unwrap();
        assert_eq!(admission.reserve(2, 1).unwrap_err(), Full::Requests { waiting: 2, limit: 3 });
        assert_eq!(admission.reserve(1, 41).unwrap_err(), Full::Tokens { waiting: 60, limit: 100 });
        assert_eq!(reserved(&admission), (2, 60));
        drop(seats);
        assert_eq!(reserved(&admission), (0, 0));
    }

    #[test]
    fn a_long_prompt_is_admitted_if_none_waits() {
        let admission = Admission::new(3, 100);
        let _seats = admission.reserve(1, 1000).unwrap();
        assert!(admission.reserve(1, 1).is_err());
    }

    #[test]
    fn a_corrected_reservation_makes_room() {
        let admission = Admission::new(3, 100);
        let mut seats = admission.reserve(1, 90).unwrap();
        seats.correct(20).unwrap();
        let mut other = admission.reserve(1, 80).unwrap();
        assert_eq!(other.correct(81), Err(Full::Tokens { waiting: 20, limit: 100 }));
        assert_eq!(reserved(&admission), (2, 100));
        drop(other);
        seats.correct(1000).unwrap();
    }

    #[test]
    fn the_seats_of_one_request_end_apart_from_the_others() {
        let admission = Admission::new(3, 100);
        let mut seats = admission.reserve(3, 90).unwrap();
        let (first, second) = (seats.split(30), seats.split(30));
        drop(first);
        assert_eq!(reserved(&admission), (2, 60));
        drop(seats);
        assert_eq!(reserved(&admission), (1, 30));
        drop(second);
        assert_eq!(reserved(&admission), (0, 0));
    }
}
