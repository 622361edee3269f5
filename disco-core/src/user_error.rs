//! Errors of a program's own types, which cross lanes as values. `register_error!` (feature `serde`) registers a type.

use std::any::Any;
use std::error::Error as StdError;
use std::sync::{Arc, OnceLock};

/// An error of a type that the program has registered with `register_error!` (feature `serde`), in the form that
/// crosses lanes: the name of its type and its content. `register_error!` encodes contents as CBOR.
#[derive(Clone)]
pub struct UserError {
    type_name: Arc<str>,
    content: Arc<[u8]>,
    /// The decoded error, set by the first [`UserError::downcast_ref`]; none if the content can't be decoded.
    decoded: Arc<OnceLock<Option<Decoded>>>,
}

/// An error of any type.
type Decoded = Box<dyn Any + Send + Sync>;

/// How errors of one type are encoded and decoded. `register_error!` makes an entry.
#[allow(clippy::exhaustive_structs, reason = "`register_error!` writes one in the crate of the error")]
#[derive(Clone, Copy, Debug)]
pub struct ErrorEntry {
    /// The path of the type, the same in all processes of the program.
    pub type_name: &'static str,
    /// The content of an error, if the error is of this type and can be encoded.
    pub encode: fn(&(dyn StdError + 'static)) -> Option<Vec<u8>>,
    /// The error with this content, if the content can be decoded.
    pub decode: fn(&[u8]) -> Option<Box<dyn Any + Send + Sync>>,
}

inventory::collect!(ErrorEntry);

impl UserError {
    /// Largest type name, and largest content, that cross lanes, in bytes.
    pub const MAX_BYTES: usize = 64 << 10;

    /// An error from its parts; none if one of them is larger than [`Self::MAX_BYTES`].
    pub fn new(type_name: impl Into<Arc<str>>, content: impl Into<Arc<[u8]>>) -> Option<Self> {
        let (type_name, content) = (type_name.into(), content.into());
        let fits = type_name.len().max(content.len()) <= Self::MAX_BYTES;
        fits.then(|| Self { type_name, content, decoded: Arc::default() })
    }

    /// `error` in the form that crosses lanes, if its type is registered.
    pub(crate) fn of(error: &(dyn StdError + 'static)) -> Option<Self> {
        let written = inventory::iter::<ErrorEntry>
            .into_iter()
            .find_map(|entry| (entry.encode)(error).map(|content| (entry.type_name, content)));
        let (type_name, content) = written?;
        let (bytes, limit) = (content.len(), Self::MAX_BYTES);
        let new = Self::new(type_name, content);
        if new.is_none() {
            tracing::warn!(type_name, bytes, limit, "an error is too large to cross a lane as a value");
        }
        new
    }

    /// The path of the error's type.
    pub fn type_name(&self) -> &Arc<str> {
        &self.type_name
    }

    /// The error's content, as its type encodes it.
    pub fn content(&self) -> &Arc<[u8]> {
        &self.content
    }

    /// The error, if it is a `T`.
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        let decode = || {
            let mut entries = inventory::iter::<ErrorEntry>.into_iter();
            let entry = entries.find(|entry| *entry.type_name == *self.type_name)?;
            (entry.decode)(&self.content)
        };
        self.decoded.get_or_init(decode).as_ref()?.downcast_ref()
    }
}

crate::format_as!(Debug for UserError, |it| "<{} of {} bytes>", it.type_name, it.content.len());

impl PartialEq for UserError {
    fn eq(&self, other: &Self) -> bool {
        (&self.type_name, &self.content) == (&other.type_name, &other.content)
    }
}

impl Eq for UserError {}

/// Registers an error type of the program, so that errors of worker functions reach the controller as values.
/// [`Error::downcast_ref`](crate::Error::downcast_ref) of the session's error gives the value, in sessions of every
/// kind.
///
/// The type implements [`std::error::Error`], `serde::Serialize` and `serde::de::DeserializeOwned`. A worker function
/// returns the error itself, or an error that has it among its causes: the first error of a registered type in the
/// chain crosses the lane. It crosses as CBOR of at most 64 KiB
/// ([`UserError::MAX_BYTES`](crate::error::UserError::MAX_BYTES)); of a larger error only the text crosses.
///
/// ```
/// use disco_core::{Error, Result, Session, WorkerContext};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, thiserror::Error, Serialize, Deserialize)]
/// #[error("the loss is no number in step {step}")]
/// struct Diverged {
///     step: u64,
/// }
///
/// disco_core::register_error!(Diverged);
///
/// fn step(_: &mut WorkerContext, step: u64) -> Result<(), Diverged> {
///     Err(Diverged { step })
/// }
///
/// disco_core::register_function!("example.step", step);
///
/// # async fn example(session: &dyn Session) -> Result<()> {
/// session.call("example.step", (3i64,)).await?;
/// if let Err(error) = session.sync_all().await {
///     match error.downcast_ref::<Diverged>() {
///         Some(diverged) => println!("step {} diverged", diverged.step),
///         None => return Err(error),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[cfg(feature = "serde")]
#[macro_export]
macro_rules! register_error {
    ($ty:ty) => {
        $crate::inventory::submit! {
            $crate::user_error::ErrorEntry {
                type_name: concat!(module_path!(), "::", stringify!($ty)),
                encode: $crate::user_error::encode::<$ty>,
                decode: $crate::user_error::decode::<$ty>,
            }
        }
    };
}

/// [`ErrorEntry::encode`] of a type.
#[cfg(feature = "serde")]
#[doc(hidden)]
pub fn encode<T: StdError + serde::Serialize + 'static>(error: &(dyn StdError + 'static)) -> Option<Vec<u8>> {
    let (error, mut content) = (error.downcast_ref::<T>()?, Vec::new());
    match ciborium::into_writer(error, &mut content) {
        Ok(()) => Some(content),
        Err(why) => {
            tracing::warn!(%error, %why, "an error does not become CBOR");
            None
        }
    }
}

/// [`ErrorEntry::decode`] of a type.
#[cfg(feature = "serde")]
#[doc(hidden)]
pub fn decode<T: serde::de::DeserializeOwned + Send + Sync + 'static>(
    content: &[u8],
) -> Option<Box<dyn Any + Send + Sync>> {
    match ciborium::from_reader::<T, _>(content) {
        Ok(error) => Some(Box::new(error)),
        Err(why) => {
            tracing::warn!(%why, "an error is not what its type says");
            None
        }
    }
}
