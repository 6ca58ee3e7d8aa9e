//! `key:value,key:value`: several parameters in one flag.

use super::FlagError;

/// The parameters of a flag. Every key may be there once.
#[derive(Debug)]
pub(super) struct Params<'a> {
    flag: &'static str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Params<'a> {
    /// Parses them; keys that are not `known` are rejected. Only the first colon divides: images and ports have some, too.
    pub(super) fn read(flag: &'static str, text: &'a str, known: &[&str]) -> Result<Self, FlagError> {
        let wrong = |message: String| FlagError::new(flag, message);
        let mut pairs: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',') {
            let Some((key, value)) = part.split_once(':') else {
                return Err(wrong(format!(
                    "{part:?} is not key:value; supported keys: {}",
                    known.join(", ")
                )));
            };
            if !known.contains(&key) {
                return Err(wrong(format!("unknown key {key:?}; supported keys: {}", known.join(", "))));
            }
            if pairs.iter().any(|(other, _)| *other == key) {
                return Err(wrong(format!("{key} is there twice")));
            }
            pairs.push((key, value));
        }
        Ok(Self { flag, pairs })
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.pairs.iter().find(|(other, _)| *other == key).map(|(_, value)| *value)
    }

    pub(super) fn needed(&self, key: &str) -> Result<&'a str, FlagError> {
        let value = self.get(key).filter(|value| !value.is_empty());
        value.ok_or_else(|| FlagError::new(self.flag, format!("{key}: required value")))
    }

    /// An error of the flag.
    pub(super) fn wrong(&self, message: &str) -> FlagError {
        FlagError::new(self.flag, message)
    }

    /// An object, `NAME` or `NAMESPACE/NAME`, that must be there.
    pub(super) fn object(&self, key: &str) -> Result<(Option<&'a str>, &'a str), FlagError> {
        let text = self.needed(key)?;
        let (namespace, name) =
            text.split_once('/').map_or((None, text), |(space, name)| (Some(space), name));
        match name.is_empty() || name.contains('/') || namespace.is_some_and(str::is_empty) {
            true => Err(self.wrong(&format!("{key}: {text:?} is neither NAME nor NAMESPACE/NAME"))),
            false => Ok((namespace, name)),
        }
    }

    /// A number from 1, if it is there.
    pub(super) fn number(&self, key: &str) -> Result<Option<u32>, FlagError> {
        let read = |text: &str| {
            let number = text.parse().ok().filter(|number| *number > 0);
            number.ok_or_else(|| {
                FlagError::new(
                    self.flag,
                    format!("{key}: invalid value {text:?}: must be a number of at least 1"),
                )
            })
        };
        self.get(key).map(read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_colon_divides() {
        let params = Params::read("x", "src:quay.io:5000/a:b,bootorder:2", &["src", "bootorder"]).unwrap();
        assert_eq!(params.needed("src").unwrap(), "quay.io:5000/a:b");
        assert_eq!(params.number("bootorder").unwrap(), Some(2));
        assert_eq!(params.get("name"), None);
        for odd in ["", "src", "src:a,src:b", "name:x", "src:a,,"] {
            assert!(Params::read("x", odd, &["src"]).is_err(), "{odd}");
        }
        for odd in ["n:0", "n:-1", "n:", "n:one"] {
            assert!(Params::read("x", odd, &["n"]).unwrap().number("n").is_err(), "{odd}");
        }
    }
}
