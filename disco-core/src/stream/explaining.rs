//! Finds the reason of a broken collective in the records of the workers.

use std::sync::Arc;
use std::time::Duration;

use super::collecting::is_of_collective;
use super::command_stream::CommandStream;
use crate::diagnosis::Diagnosis;
use crate::error::{Error, Failure, Result};

/// Time that the recordings for an error's table have to arrive.
const REPORT_LIMIT: Duration = Duration::from_secs(1);

impl CommandStream {
    /// Adds a table of the workers' last operations to the error of a stuck or broken collective.
    pub(crate) async fn explain<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Ok(value) => Ok(value),
            // In a box, so that the futures of methods stay small.
            Err(error) => Err(Box::pin(self.explained(error)).await),
        }
    }

    async fn explained(&self, error: Error) -> Error {
        let is_stuck = match &error {
            Error::Deadline { .. } | Error::Stalled { .. } | Error::Lost(_) => true,
            Error::Worker(failure) => is_of_collective(failure),
            _ => false,
        };
        if !is_stuck || self.reply_table.is_explained(&error) {
            return error;
        }
        let evidence = self.reply_table.evidence();
        evidence.arrival(&self.ticker, REPORT_LIMIT).await;
        let explained = match Diagnosis::of(&evidence.take(&self.reply_table.members(), "no records have come")) {
            Some(diagnosis) => add(error.clone(), &format!("\n{diagnosis}")),
            None => error.clone(),
        };
        self.reply_table.explain(&error, &explained);
        explained
    }
}

fn add(error: Error, table: &str) -> Error {
    match error {
        Error::Worker(failure) => {
            let mut failure = Failure::clone(&failure);
            match failure.causes.last_mut() {
                Some(last) => last.push_str(table),
                None => failure.message.push_str(table),
            }
            Error::Worker(Arc::new(failure))
        }
        Error::Deadline { operation, after, state } => Error::Deadline { operation, after, state: state + table },
        Error::Stalled { worker, after, state } => Error::Stalled { worker, after, state: state + table },
        Error::Lost(loss) => {
            let mut loss = (*loss).clone();
            loss.records = Some(table.into());
            Error::Lost(Arc::new(loss))
        }
        other => other,
    }
}
