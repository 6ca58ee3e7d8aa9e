//! What the load generator `io-load` is asked and answers, each a line of JSON.

use serde::{Deserialize, Serialize};

/// Which requests a job makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Reads at random blocks.
    RandomRead,
    /// Writes at random blocks.
    RandomWrite,
    /// Reads of one block after the other.
    SequentialRead,
    /// 70 % reads and 30 % writes at random blocks, and an `fdatasync` after every 16 writes.
    Mixed,
}

/// When a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// After this time.
    Seconds(f64),
    /// After as many reads and writes.
    Requests(u64),
}

/// One job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The requests.
    pub mode: Mode,
    /// Bytes of a request.
    pub block: u32,
    /// Requests in flight.
    pub depth: u32,
    /// The end, counted from the end of the ramp.
    pub limit: Limit,
    /// Seconds before anything counts.
    pub ramp: f64,
    /// Threads that each have as many requests in flight, on a CPU of their own: they are what uses more than one queue.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub threads: u32,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(threads: &u32) -> bool {
    *threads == 1
}

/// What a job measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Reads and writes that completed after the ramp and before the end.
    pub requests: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// What they took.
    pub seconds: f64,
    /// Half of them took at most this long, in microseconds.
    pub p50: u64,
    /// 99 % of them took at most this long, in microseconds.
    pub p99: u64,
    /// Reads and writes of the whole job, with those of the ramp and after the end.
    pub all_requests: u64,
    /// `fdatasync`s of the whole job.
    pub syncs: u64,
    /// What the whole job took.
    pub all_seconds: f64,
}

/// A line that `io-load` prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// It waits for a job.
    Ready {
        /// The size of the device.
        bytes: u64,
    },
    /// A job ended.
    Done(Outcome),
    /// A job could not be carried out.
    Failed {
        /// Why.
        reason: String,
    },
}

impl Job {
    /// What is wrong with it for a device of that size.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self, device_bytes: u64) -> Result<(), String> {
        let block = u64::from(self.block);
        if block == 0 || !block.is_multiple_of(512) || block > device_bytes {
            return Err(format!(
                "block {block}: want a multiple of 512, at most the device's {device_bytes}"
            ));
        }
        if !(1..=1024).contains(&self.depth) {
            return Err(format!("depth {}: want 1 to 1024", self.depth));
        }
        if !(1..=64).contains(&self.threads) {
            return Err(format!("threads {}: want 1 to 64", self.threads));
        }
        let is_time = |seconds: f64| (0.0..=3600.0).contains(&seconds);
        if !is_time(self.ramp) {
            return Err(format!("ramp {}: want 0 to 3600 seconds", self.ramp));
        }
        match self.limit {
            Limit::Seconds(seconds) if !is_time(seconds) => {
                Err(format!("limit {seconds}: want 0 to 3600 seconds"))
            }
            Limit::Seconds(_) | Limit::Requests(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: Job =
        Job { mode: Mode::Mixed, block: 4096, depth: 8, limit: Limit::Seconds(2.0), ramp: 0.25, threads: 1 };

    #[test]
    fn lines_are_json_of_one_shape() {
        let text = r#"{"mode":"mixed","block":4096,"depth":8,"limit":{"seconds":2.0},"ramp":0.25}"#;
        assert_eq!(serde_json::to_string(&JOB).unwrap(), text);
        assert_eq!(serde_json::from_str::<Job>(text).unwrap(), JOB);
        let two = Job { threads: 2, ..JOB };
        assert_eq!(serde_json::from_str::<Job>(&serde_json::to_string(&two).unwrap()).unwrap(), two);
        let ready = Response::Ready { bytes: 512 };
        assert_eq!(serde_json::to_string(&ready).unwrap(), r#"{"ready":{"bytes":512}}"#);
    }

    #[test]
    fn impossible_jobs_are_refused_by_the_field() {
        assert_eq!(JOB.validate(1 << 20), Ok(()));
        let message = |job: Job| job.validate(1 << 20).unwrap_err();
        assert!(message(Job { block: 0, ..JOB }).starts_with("block 0"));
        assert!(message(Job { block: 1000, ..JOB }).starts_with("block 1000"));
        assert!(message(Job { block: 2 << 20, ..JOB }).starts_with("block"));
        assert!(message(Job { depth: 0, ..JOB }).starts_with("depth"));
        assert!(message(Job { threads: 0, ..JOB }).starts_with("threads"));
        assert!(message(Job { ramp: f64::NAN, ..JOB }).starts_with("ramp"));
        assert!(message(Job { limit: Limit::Seconds(-1.0), ..JOB }).starts_with("limit"));
    }
}
