//! The Quality of Service class of a pod.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::containers;

/// Resources that decide the class.
const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// `Guaranteed` if every container limits CPU and memory and requests as much; `BestEffort` if no container limits or
/// requests anything; else `Burstable`.
pub(super) fn class(pod: &Value) -> &'static str {
    let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
    let mut guaranteed = true;
    for (_, _, container) in containers(pod) {
        add(&mut requests, container.pointer("/resources/requests"));
        guaranteed &= add(&mut limits, container.pointer("/resources/limits")) == COMPUTE.len();
    }
    match guaranteed && requests == limits {
        _ if requests.is_empty() && limits.is_empty() => "BestEffort",
        true => "Guaranteed",
        false => "Burstable",
    }
}

/// Adds amounts that are not zero. How many those are.
fn add(sums: &mut BTreeMap<&'static str, i128>, amounts: Option<&Value>) -> usize {
    let amounts = amounts.and_then(Value::as_object);
    let amount = |amounts: &Map<String, Value>, name: &str| quantity(amounts.get(name)?.as_str()?);
    let found =
        COMPUTE.into_iter().filter_map(|name| Some((name, amount(amounts?, name).filter(|has| *has > 0)?)));
    let found: Vec<(&'static str, i128)> = found.collect();
    for (name, amount) in &found {
        let sum: &mut i128 = sums.entry(name).or_default();
        *sum = sum.saturating_add(*amount);
    }
    found.len()
}

/// A quantity in billionths, the smallest unit of quantities. None if it is not a quantity.
fn quantity(text: &str) -> Option<i128> {
    const SCALE: i32 = 9;
    let end =
        text.find(|letter: char| !letter.is_ascii_digit() && !"+-.".contains(letter)).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (exponent, factor) = match suffix {
        "n" => (-9, 1),
        "u" => (-6, 1),
        "m" => (-3, 1),
        "" => (0, 1),
        "k" => (3, 1),
        "M" => (6, 1),
        "G" => (9, 1),
        "T" => (12, 1),
        "P" => (15, 1),
        "E" => (18, 1),
        "Ki" => (0, 1 << 10),
        "Mi" => (0, 1 << 20),
        "Gi" => (0, 1 << 30),
        "Ti" => (0, 1_i128 << 40),
        "Pi" => (0, 1_i128 << 50),
        "Ei" => (0, 1_i128 << 60),
        other => (other.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?, 1),
    };
    let exponent = exponent.checked_add(SCALE)?.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let scaled = digits.checked_mul(factor)?;
    let power = 10_i128.checked_pow(exponent.unsigned_abs())?;
    match exponent {
        ..0 => scaled.checked_div(power),
        _ => scaled.checked_mul(power),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_compared_by_value() {
        for (one, other) in
            [("1", "1000m"), ("0.5", "500m"), ("1Ki", "1024"), ("1e3", "1k"), ("1.5Gi", "1536Mi")]
        {
            assert!(quantity(one).is_some() && quantity(one) == quantity(other), "{one} {other}");
        }
        for odd in ["", "x", "1 Gi", "1Gib", "--1", "1e999", "1e99999999999"] {
            assert_eq!(quantity(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_class_follows_from_requests_and_limits() {
        let both = |cpu: &str| json!({"cpu": cpu, "memory": "1Gi"});
        for (resources, expected) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "0"}}), "BestEffort"),
            (json!({"requests": {"devices.kubevirt.io/kvm": "1"}}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"requests": both("1"), "limits": both("1000m")}), "Guaranteed"),
            (json!({"requests": both("1"), "limits": both("2")}), "Burstable"),
            (json!({"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}), "Burstable"),
        ] {
            let pod = json!({"spec": {"containers": [{"resources": resources}]}});
            assert_eq!(class(&pod), expected, "{pod}");
        }
    }
}
