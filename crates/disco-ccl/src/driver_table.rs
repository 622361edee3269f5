//! Tables of functions that have the same signatures in CUDA and HIP, but other names.

/// Defines a table of functions. The first column of a row is the index of the function's name in the library.
macro_rules! functions {
    (
        $(#[$attribute:meta])*
        pub struct $table:ident[$count:literal] {
            $($(#[$row:meta])* $at:literal $field:ident: fn($($arg:ty),*);)*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $table {
            $($(#[$row])* $field: unsafe extern "C" fn($($arg),*) -> std::ffi::c_int,)*
            /// The library's names of the functions, in this order.
            names: &'static [&'static std::ffi::CStr; $count],
            /// Converts the code of a function into a result.
            check: fn(&'static std::ffi::CStr, std::ffi::c_int) -> disco_core::Result<()>,
        }

        impl $table {
            /// Resolves the functions in a library. `names` has the library's name of each field, in the order of the
            /// fields.
            ///
            /// # Errors
            /// The first name that the library lacks.
            ///
            /// # Safety
            /// `names` are the names of CUDA's or HIP's functions for these fields.
            pub unsafe fn resolve(
                library: &disco_dl::Library,
                names: &'static [&'static std::ffi::CStr; $count],
                check: fn(&'static std::ffi::CStr, std::ffi::c_int) -> disco_core::Result<()>,
            ) -> Result<Self, &'static std::ffi::CStr> {
                Ok(Self {
                    $(
                        // SAFETY: the caller guarantees that the function of this name has the signature of the field.
                        $field: unsafe { library.function(names[$at]) }.ok_or(names[$at])?,
                    )*
                    names,
                    check,
                })
            }

            /// Checks the code that the function with the index `at` has returned.
            fn check(&self, at: usize, code: std::ffi::c_int) -> disco_core::Result<()> {
                (self.check)(self.names[at], code)
            }
        }
    };
}
pub(crate) use functions;
