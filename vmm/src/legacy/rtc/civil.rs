use super::registers::{CENTURY, DAY, HOURS, MINUTES, MONTH, SECONDS, WEEKDAY, YEAR};

/// A date and time of the proleptic Gregorian calendar.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Civil {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
    pub(super) second_of_day: i64,
}

impl Civil {
    /// The time `seconds` after 1970. Years count from 1 March here, so that the leap day is the last of its year.
    pub(super) fn at(seconds: i64) -> Self {
        let days = seconds.div_euclid(86_400) + 719_468;
        let era = days.div_euclid(146_097);
        let day_of_era = days.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        Self {
            year: era * 400 + year_of_era + i64::from(month <= 2),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            second_of_day: seconds.rem_euclid(86_400),
        }
    }

    /// Seconds after 1970. Fields out of their range carry over.
    pub(super) fn seconds(&self) -> i64 {
        let month = self.month.clamp(1, 12);
        let year = self.year - i64::from(month <= 2);
        let era = year.div_euclid(400);
        let year_of_era = year.rem_euclid(400);
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + self.day - 1;
        let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
        (era * 146_097 + day_of_era - 719_468) * 86_400 + self.second_of_day
    }

    /// The value of the clock's register `index`, as a number; `None` for a register that is not part of the time.
    pub(super) fn register(&self, index: u8) -> Option<u8> {
        let days = self.seconds().div_euclid(86_400);
        let value = match index {
            SECONDS => self.second_of_day % 60,
            MINUTES => self.second_of_day / 60 % 60,
            HOURS => self.second_of_day / 3600,
            // 1 January 1970 was a Thursday, and Sunday is 1.
            WEEKDAY => (days + 4).rem_euclid(7) + 1,
            DAY => self.day,
            MONTH => self.month,
            YEAR => self.year.rem_euclid(100),
            CENTURY => self.year.div_euclid(100).rem_euclid(100),
            _ => return None,
        };
        u8::try_from(value).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn civil_time_round_trips(seconds in -62_000_000_000_i64..250_000_000_000) {
            let civil = Civil::at(seconds);
            prop_assert_eq!(civil.seconds(), seconds);
            prop_assert!((1..=12).contains(&civil.month) && (1..=31).contains(&civil.day));
        }
    }
}
