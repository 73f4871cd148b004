//! The time in a response (RFC 9110 section 5.6.7).

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// A point in time as an HTTP date, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use outrigger::protocol::http::HttpDate;
///
/// let time = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
/// assert_eq!(HttpDate::from(time).to_string(), "Sun, 06 Nov 1994 08:49:37 GMT");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpDate {
    /// Seconds since 1970-01-01.
    seconds: u64,
}

impl HttpDate {
    /// The current time.
    pub fn now() -> Self {
        SystemTime::now().into()
    }
}

impl From<SystemTime> for HttpDate {
    /// A time before 1970 becomes 1970-01-01.
    fn from(time: SystemTime) -> Self {
        let seconds = time
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        Self { seconds }
    }
}

impl fmt::Display for HttpDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        let days = self.seconds / 86400;
        // The calendar repeats every 400 years. With years that begin in March, the leap day is the last day of a year.
        let since_march = days + 719_468;
        let (era, day) = (since_march / 146_097, since_march % 146_097);
        let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let year = era * 400 + year + u64::from(month >= 10);
        let weekday = WEEKDAYS[(days % 7) as usize];
        let month = MONTHS[((month + 2) % 12) as usize];
        let second = self.seconds % 86400;
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(
            f,
            "{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_four_centuries_is_followed_by_the_next() {
        // A naive calendar, day by day.
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_100_u64 {
            let date = HttpDate {
                seconds: days * 86400 + 86399,
            };
            let month_name = [
                "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep",
            ]
            .into_iter()
            .chain(["Oct", "Nov", "Dec"])
            .nth(month - 1);
            let expected = format!(
                ", {day:02} {} {year} 23:59:59 GMT",
                month_name.expect("1 to 12")
            );
            assert!(date.to_string().ends_with(&expected), "{date} {expected}");
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 if is_leap => 29,
                2 => 28,
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
    }

    #[test]
    fn weekdays_repeat_every_seven_days() {
        for (seconds, weekday) in [(0, "Thu"), (784_111_777, "Sun"), (951_782_400, "Tue")] {
            let date = HttpDate { seconds }.to_string();
            assert!(date.starts_with(weekday), "{date}");
        }
    }
}
