//! `Display` and `Debug` by one format string.

/// Implements `Display` or `Debug` of a type by a format string: `format_as!(Debug for Group, |it| "<{} ranks>", it.size())`.
#[doc(hidden)]
#[macro_export]
macro_rules! format_as {
    ($trait:ident for $type:ty, |$value:pat_param| $($format:tt)+) => {
        impl ::std::fmt::$trait for $type {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                let $value = self;
                ::std::write!(f, $($format)+)
            }
        }
    };
}
