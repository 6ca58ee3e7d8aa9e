use std::fmt;
use std::str::FromStr;

use uuid::Uuid;
use vireo_vmconfig::MacAddr;

use crate::v1::Quantity;

/// Why a text is not a Kubernetes quantity of the required kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not a number with one of the known suffixes.
    #[error(
        "{0:?} is not a quantity: write a number, with Ki, Mi, Gi, Ti, k, M, G, T or m behind it where needed"
    )]
    Syntax(String),
    /// Below zero.
    #[error("{0:?} is negative: write a positive quantity")]
    Negative(String),
    /// Does not fit 64 bits.
    #[error("{0:?} is too large")]
    TooLarge(String),
}

/// The most digits before and after the point together; more than 64 bits can use.
const MAX_DIGITS: usize = 30;

/// Reads a quantity in units of 10^-`decimals`, rounded up as Kubernetes does.
fn read(text: &str, decimals: u32) -> Result<u64, QuantityError> {
    let syntax = || QuantityError::Syntax(text.to_owned());
    let too_large = || QuantityError::TooLarge(text.to_owned());
    let (negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (number, suffix) = rest.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{fraction}");
    if digits.is_empty() || fraction.contains('.') {
        return Err(syntax());
    }
    let significant = digits.trim_start_matches('0');
    if significant.len() > MAX_DIGITS || fraction.len() > MAX_DIGITS {
        return Err(too_large());
    }
    let mantissa: u128 =
        if significant.is_empty() { 0 } else { significant.parse().map_err(|_| syntax())? };
    if negative && mantissa != 0 {
        return Err(QuantityError::Negative(text.to_owned()));
    }
    let (binary, exponent) = suffix_powers(suffix).ok_or_else(syntax)?;
    let fraction_len = i32::try_from(fraction.len()).map_err(|_| too_large())?;
    let decimals = i32::try_from(decimals).map_err(|_| too_large())?;
    let power = exponent - fraction_len + decimals;
    let scaled = mantissa.checked_mul(1u128 << binary).ok_or_else(too_large)?;
    let value = match u32::try_from(power) {
        Ok(up) if mantissa != 0 => {
            10u128.checked_pow(up).and_then(|factor| scaled.checked_mul(factor)).ok_or_else(too_large)?
        }
        Ok(_) => 0,
        // More decimals than 128 bits hold: not zero, so rounded up to one.
        Err(_) => match 10u128.checked_pow(power.unsigned_abs()) {
            Some(divisor) => scaled.div_ceil(divisor),
            None => u128::from(scaled != 0),
        },
    };
    u64::try_from(value).map_err(|_| too_large())
}

/// The power of two and the power of ten a suffix multiplies by.
fn suffix_powers(suffix: &str) -> Option<(u32, i32)> {
    Some(match suffix {
        "Ki" => (10, 0),
        "Mi" => (20, 0),
        "Gi" => (30, 0),
        "Ti" => (40, 0),
        "Pi" => (50, 0),
        "Ei" => (60, 0),
        "n" => (0, -9),
        "u" => (0, -6),
        "m" => (0, -3),
        "" => (0, 0),
        "k" => (0, 3),
        "M" => (0, 6),
        "G" => (0, 9),
        "T" => (0, 12),
        "P" => (0, 15),
        "E" => (0, 18),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            return (-99..=99).contains(&exponent).then_some((0, exponent));
        }
    })
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(u64);

impl Bytes {
    /// That many bytes.
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// That many times 1024² bytes.
    pub const fn mebibytes(count: u32) -> Self {
        Self((count as u64) << 20)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The largest multiple of `unit` that is not larger.
    #[must_use]
    pub fn round_down(self, unit: u64) -> Self {
        Self(self.0 - self.0.checked_rem(unit).unwrap_or(0))
    }
}

impl FromStr for Bytes {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text, 0).map(Self)
    }
}

impl TryFrom<&Quantity> for Bytes {
    type Error = QuantityError;

    fn try_from(quantity: &Quantity) -> Result<Self, Self::Error> {
        quantity.as_str().parse()
    }
}

/// In the largest binary unit that is exact, as a quantity: `512Mi`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, suffix) in [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")] {
            if self.0 != 0 && self.0.trailing_zeros() >= shift {
                return write!(f, "{}{suffix}", self.0 >> shift);
            }
        }
        write!(f, "{}", self.0)
    }
}

/// A share of CPU time in thousandths of a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MilliCpus(u64);

impl MilliCpus {
    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Whole CPUs, rounded up.
    pub const fn whole(self) -> u64 {
        self.0.div_ceil(1000)
    }
}

impl TryFrom<&Quantity> for MilliCpus {
    type Error = QuantityError;

    fn try_from(quantity: &Quantity) -> Result<Self, Self::Error> {
        read(quantity.as_str(), 3).map(Self)
    }
}

/// A VM's uid: a UUID, so that it is safe as a file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmiUid(Uuid);

impl VmiUid {
    /// The UUID itself.
    pub fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// A UUID that is the same for the same VM and name, and differs for any other.
    pub fn derive(&self, name: &str) -> Uuid {
        Uuid::new_v5(&self.0, name.as_bytes())
    }
}

impl From<Uuid> for VmiUid {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl FromStr for VmiUid {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl VmiUid {
    /// A locally administered address that is the same for the same VMI and NIC.
    pub fn mac_of(&self, nic: &str) -> MacAddr {
        let [a, b, c, d, e, ..] = *self.derive(nic).as_bytes();
        MacAddr::local([a, b, c, d, e])
    }
}

impl fmt::Display for VmiUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, bytes) in [
            ("0", 0),
            ("128", 128),
            ("64Mi", 64 << 20),
            ("1.5Gi", 3 << 29),
            ("1G", 1_000_000_000),
            ("1e3", 1000),
            ("12E2", 1200),
            ("100m", 1),
            ("0.5", 1),
            ("1500m", 2),
            ("+4Ki", 4096),
            ("-0", 0),
            (".5Ki", 512),
            ("15Ei", 15 << 60),
            ("1n", 1),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        assert_eq!(MilliCpus::try_from(&Quantity("1500m".into())), Ok(MilliCpus(1500)));
        assert_eq!(MilliCpus::try_from(&Quantity("0.1".into())).map(MilliCpus::whole), Ok(1));
    }

    #[test]
    fn what_is_no_quantity_is_refused_for_what_it_is() {
        for text in ["", "Mi", "1.2.3", "1 Gi", "1Gib", "ten", "1e", "e3", "--1", "1e999", "0x10", "٣"] {
            assert!(matches!(text.parse::<Bytes>(), Err(QuantityError::Syntax(_))), "{text}");
        }
        assert!(matches!("-1".parse::<Bytes>(), Err(QuantityError::Negative(_))));
        for text in ["16Ei", "1e20", "99999999999999999999999999999999999999999"] {
            assert!(matches!(text.parse::<Bytes>(), Err(QuantityError::TooLarge(_))), "{text}");
        }
    }

    #[test]
    fn bytes_are_shown_in_the_largest_exact_unit() {
        for (bytes, text) in
            [(0, "0"), (1023, "1023"), (64 << 20, "64Mi"), (3 << 29, "1536Mi"), (1 << 40, "1Ti")]
        {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_derived_mac_is_stable_local_and_differs_by_nic_and_vmi() {
        let uid = VmiUid(Uuid::from_u128(7));
        let mac = uid.mac_of("default");
        assert_eq!(mac, uid.mac_of("default"));
        assert_eq!(mac.to_string().parse(), Ok(mac));
        assert_ne!(mac, uid.mac_of("other"));
        assert_ne!(mac, VmiUid(Uuid::from_u128(8)).mac_of("default"));
        assert_eq!(mac.octets()[0], 0x02);
    }
}
