//! Return codes of an interface: their numbers, names and texts.

use std::ffi::CStr;

/// Defines the type `Code` of an interface. A row has the name of the constant, the number, the name in C, and the text.
macro_rules! codes {
    ($(#[$attribute:meta])* $($constant:ident = $number:literal, $name:ident, $text:literal;)*) => {
        $(#[$attribute])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, serde::Deserialize, PartialEq, Eq, serde::Serialize)]
        pub struct Code(pub c_int);

        impl Code {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $constant: Self = Self($number);
            )*

            /// The return code of an export.
            pub(crate) fn of(result: Result<(), Self>) -> Self {
                result.err().unwrap_or(Self::SUCCESS)
            }

            /// The name and the text. None for a code that the interface does not have.
            pub(crate) fn describe(self) -> Option<$crate::codes::Description> {
                use $crate::codes::{Description, c_text};
                match self.0 {
                    $($number => Some(Description {
                        name: const { c_text(concat!(stringify!($name), "\0")) },
                        text: const { c_text(concat!($text, "\0")) },
                    }),)*
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use codes;

/// The name and the text of a code.
pub(crate) struct Description {
    pub(crate) name: &'static CStr,
    pub(crate) text: &'static CStr,
}

/// A text that ends with its only NUL byte.
pub(crate) const fn c_text(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("the text has no NUL byte at its end, or another one"),
    }
}
