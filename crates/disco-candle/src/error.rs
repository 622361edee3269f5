//! Errors of Disco inside errors of candle, and back.

use std::fmt;
use std::io;

use disco_core::Error;

/// An error of Disco, as candle's `Error::Io` carries it. Candle's own wrapper, `Error::Wrapped`, has no source.
#[derive(Debug)]
struct Carried(Error);

impl fmt::Display for Carried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Carried {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// `error` as an error of candle. It displays the text of `error`, which is also its source: so a worker function may
/// return it, and the controller sees the [kind](disco_core::Error::kind) of `error`.
pub fn to_candle(error: Error) -> candle_core::Error {
    candle_core::Error::Io(io::Error::other(Carried(error)))
}

/// The error of Disco in an error of candle, also behind contexts that were added to it.
///
/// ```
/// use disco_candle::{find_disco_error, to_candle};
///
/// let error = to_candle(disco_core::Error::NoCommunicator).context("layer 3");
/// assert!(matches!(find_disco_error(&error), Some(disco_core::Error::NoCommunicator)));
/// ```
pub fn find_disco_error(error: &candle_core::Error) -> Option<&Error> {
    use candle_core::Error as Candle;
    match error {
        Candle::Io(io) => io.get_ref()?.downcast_ref::<Carried>().map(|carried| &carried.0),
        Candle::Context { inner, .. } | Candle::WithPath { inner, .. } | Candle::WithBacktrace { inner, .. } => {
            find_disco_error(inner)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use disco_core::error::ErrorKind;

    use super::*;

    #[test]
    fn the_source_of_a_converted_error_is_the_error() {
        let aborted = to_candle(Error::Aborted { cause: "worker 2 failed".into() });
        assert!(aborted.to_string().contains("worker 2 failed"), "{aborted}");
        let source = std::error::Error::source(&aborted).unwrap().downcast_ref::<Error>().unwrap();
        assert_eq!(source.kind(), ErrorKind::Aborted);
        assert!(find_disco_error(&candle_core::Error::Msg("no".into())).is_none());
    }
}
