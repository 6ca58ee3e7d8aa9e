//! Limits of block I/O of each launcher, by the disks of the node: the API has none.

use std::collections::BTreeMap;
use std::str::FromStr;

/// What can be limited, as `io.max` names it, and the file that version 1 has for it.
const KINDS: [(&str, &str); 4] = [
    ("rbps", "blkio.throttle.read_bps_device"),
    ("wbps", "blkio.throttle.write_bps_device"),
    ("riops", "blkio.throttle.read_iops_device"),
    ("wiops", "blkio.throttle.write_iops_device"),
];

/// How much each launcher may read from and write to a disk of the node in a second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IoMax {
    /// `MAJOR:MINOR`.
    device: String,
    /// Bytes or requests, by an index of [`KINDS`].
    limits: BTreeMap<usize, u64>,
}

/// Why it is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IoMaxError {
    /// No device.
    #[error("{0:?} is not the number of a device: write MAJOR:MINOR, as in /sys/block/DISK/dev")]
    Device(String),
    /// No limit.
    #[error("{0:?} is not a limit: write rbps=N, wbps=N, riops=N or wiops=N, where N is at least 1")]
    Limit(String),
    /// The same one twice.
    #[error("{0} is there twice")]
    Twice(&'static str),
    /// None at all.
    #[error("a limit is missing: write rbps=N, wbps=N, riops=N or wiops=N behind the device")]
    Missing,
}

impl FromStr for IoMax {
    type Err = IoMaxError;

    /// A line of `io.max`: `8:0 wbps=104857600 riops=1000`.
    fn from_str(text: &str) -> Result<Self, IoMaxError> {
        let mut words = text.split_whitespace();
        let device = words.next().unwrap_or_default();
        let number = |text: &str| text.parse::<u32>().ok();
        let parsed = device.split_once(':').and_then(|(major, minor)| number(major).zip(number(minor)));
        let (major, minor) = parsed.ok_or_else(|| IoMaxError::Device(device.to_owned()))?;
        let mut limits = BTreeMap::new();
        for word in words {
            let (index, name, limit) = limit(word).ok_or_else(|| IoMaxError::Limit(word.to_owned()))?;
            if limits.insert(index, limit).is_some() {
                return Err(IoMaxError::Twice(name));
            }
        }
        if limits.is_empty() {
            return Err(IoMaxError::Missing);
        }
        Ok(Self { device: format!("{major}:{minor}"), limits })
    }
}

fn limit(word: &str) -> Option<(usize, &'static str, u64)> {
    let (key, value) = word.split_once('=')?;
    let (index, (name, _)) = KINDS.into_iter().enumerate().find(|(_, (name, _))| *name == key)?;
    Some((index, name, value.parse().ok().filter(|value| *value > 0)?))
}

impl IoMax {
    /// The files of the controller, in the version of its hierarchy.
    pub(super) fn files(&self, is_v2: bool) -> Vec<(&'static str, String)> {
        let known = KINDS.iter().enumerate();
        let limits = known.filter_map(|(index, kind)| Some((kind, self.limits.get(&index)?)));
        if is_v2 {
            let words: Vec<_> = limits.map(|((name, _), limit)| format!("{name}={limit}")).collect();
            return vec![("io.max", format!("{} {}", self.device, words.join(" ")))];
        }
        limits.map(|((_, file), limit)| (*file, format!("{} {limit}", self.device))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_kernel() {
        let max: IoMax = "8:16  wbps=1048576 riops=100".parse().unwrap();
        assert_eq!(max.files(true), [("io.max", "8:16 wbps=1048576 riops=100".to_owned())]);
        let files = max.files(false).into_iter().map(|(name, value)| format!("{name} {value}"));
        assert_eq!(
            files.collect::<Vec<_>>(),
            ["blkio.throttle.write_bps_device 8:16 1048576", "blkio.throttle.read_iops_device 8:16 100"]
        );
    }

    #[test]
    fn what_is_no_limit_is_named() {
        let device = |text: &str| IoMaxError::Device(text.to_owned());
        let limit = |text: &str| IoMaxError::Limit(text.to_owned());
        for (text, error) in [
            ("", device("")),
            ("sda wbps=1", device("sda")),
            ("8: wbps=1", device("8:")),
            ("8:0", IoMaxError::Missing),
            ("8:0 wbps", limit("wbps")),
            ("8:0 wbps=max", limit("wbps=max")),
            ("8:0 wbps=0", limit("wbps=0")),
            ("8:0 bps=1", limit("bps=1")),
            ("8:0 wbps=1 wbps=2", IoMaxError::Twice("wbps")),
        ] {
            assert_eq!(text.parse::<IoMax>(), Err(error), "{text}");
        }
    }
}
