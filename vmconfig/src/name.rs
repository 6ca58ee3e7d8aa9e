use std::error::Error;
use std::fmt;

/// The error of parsing a name that is not among the type's `NAMES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownName {
    /// The names that are supported, sorted.
    pub supported: &'static [&'static str],
}

impl fmt::Display for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "supported values: {:?}", self.supported)
    }
}

impl Error for UnknownName {}

/// Implements the conversion between the values of an enum and their names in a manifest. List the values in the
/// order of their names: error messages show them in that order.
macro_rules! names {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values, sorted by name.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// The names of all values, sorted.
            pub const NAMES: &[&str] = &[$($name),+];

            /// The name in a manifest.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::str::FromStr for $type {
            type Err = crate::UnknownName;

            fn from_str(name: &str) -> Result<Self, Self::Err> {
                match name {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(crate::UnknownName { supported: Self::NAMES }),
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use names;
