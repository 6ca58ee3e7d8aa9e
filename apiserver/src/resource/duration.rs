//! Ages in `kubectl`'s short form.

use jiff::Timestamp;

/// How long ago an RFC 3339 time is.
pub(super) fn since(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(time) => human(Timestamp::now().as_second() - time.as_second()),
        Err(_) => "<unknown>".to_owned(),
    }
}

/// Two units at most, the second only if it is not zero: `5s`, `3m20s`, `26m`, `5h2m`, `9h`, `2d3h`, `9d`, `3y`.
pub fn human(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let pair = |large: i64, unit: char, small: i64, lesser: char| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{lesser}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => pair(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => pair(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => pair(days, 'd', hours % 24, 'h'),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => pair(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn ages_are_kubectls() {
        for (seconds, expected) in [
            (-5, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_158_400, "2y1d"),
        ] {
            assert_eq!(human(seconds), expected);
        }
    }
}
