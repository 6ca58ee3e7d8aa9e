use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;

/// The problems of a message, each with the path of its field. A check replaces an invalid value and continues.
#[derive(Debug, Default)]
pub struct Problems(Vec<String>);

impl Problems {
    /// Adds a problem of the field `at`.
    pub fn add(&mut self, at: &str, what: impl Display) {
        self.0.push(format!("{at}: {what}"));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All problems as texts.
    pub fn into_texts(self) -> Vec<String> {
        self.0
    }

    /// Parses a text.
    pub fn parse<T: FromStr<Err: Display>>(&mut self, at: &str, text: &str) -> Option<T> {
        text.parse().map_err(|error| self.add(at, format_args!("{text:?}: {error}"))).ok()
    }

    /// A path, which must not be empty.
    pub fn path(&mut self, at: &str, text: String) -> PathBuf {
        if text.is_empty() || text.contains('\0') {
            self.add(at, "no path");
        }
        PathBuf::from(text)
    }

    /// An enum of the protocol by its number.
    pub fn number<T: TryFrom<i32>>(&mut self, at: &str, number: i32) -> Option<T> {
        T::try_from(number).map_err(|_| self.add(at, format_args!("no such value: {number}"))).ok()
    }

    /// An enum of the vocabulary by its number in the protocol; `Some(None)` if the number is that of `Unspecified`.
    pub fn value<M, T>(&mut self, at: &str, number: i32) -> Option<Option<T>>
    where
        M: TryFrom<i32> + Into<Option<T>>,
    {
        self.number::<M>(at, number).map(Into::into)
    }
}
