//! How long certificates live, as a KubeVirt object says.

use jiff::SignedDuration;
use vireo_api::v1::{CertConfig, KubeVirtSpec};

use super::{Lifetime, PROPAGATION};
use crate::Problem;

const DAY: i64 = 24 * 60 * 60;
/// The steps of a rotation that a certificate has to outlive, each of which takes until all components have read it.
const STEPS: i64 = 2;
const PATH: &str = "spec.certificateRotateStrategy.selfSigned";

/// How long the certificates of an installation live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strategy {
    /// The authority.
    pub authority: Lifetime,
    /// The components' certificates.
    pub server: Lifetime,
}

fn given_lifetime(given: &CertConfig, default: Lifetime, field: &str) -> Result<Lifetime, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut seconds = |name: &str, text: &str| match text {
        "" => None,
        text => match text.parse::<SignedDuration>() {
            Ok(duration) if duration.is_positive() => Some(duration.as_secs()),
            Ok(_) | Err(_) => {
                let message = "must be a positive duration, such as 720h or 1h30m";
                problems.push(Problem::invalid(format!("{PATH}.{field}.{name}"), message));
                None
            }
        },
    };
    let duration = seconds("duration", &given.duration).unwrap_or(default.duration);
    let renew_before =
        seconds("renewBefore", &given.renew_before).unwrap_or(Lifetime::lasting(duration).renew_before);
    if problems.is_empty() && renew_before >= duration {
        let message = "must be shorter than the duration";
        problems.push(Problem::invalid(format!("{PATH}.{field}.renewBefore"), message));
    }
    let least = STEPS * PROPAGATION;
    if problems.is_empty() && renew_before < least {
        let message = format!(
            "must be at least {} minutes: components read new certificates within that time",
            least / 60
        );
        problems.push(Problem::invalid(format!("{PATH}.{field}.renewBefore"), message));
    }
    if problems.is_empty() { Ok(Lifetime { duration, renew_before }) } else { Err(problems) }
}

impl Default for Strategy {
    fn default() -> Self {
        Self { authority: Lifetime::lasting(365 * DAY), server: Lifetime::lasting(90 * DAY) }
    }
}

impl Strategy {
    /// That of a KubeVirt object.
    ///
    /// # Errors
    /// What is not valid in it.
    pub fn new(spec: &KubeVirtSpec) -> Result<Self, Vec<Problem>> {
        let default = Self::default();
        let given = spec.certificate_rotate_strategy.as_ref();
        let Some(given) = given.and_then(|strategy| strategy.self_signed.as_ref()) else {
            return Ok(default);
        };
        let lifetime = |given: &Option<CertConfig>, default, field| match given {
            Some(config) => given_lifetime(config, default, field),
            None => Ok(default),
        };
        let authority = lifetime(&given.ca, default.authority, "ca");
        // An authority may be given that lives shorter than certificates do by default.
        let longest = authority.as_ref().map_or(default.server.duration, |authority| authority.duration);
        let server = Lifetime::lasting(default.server.duration.min(longest));
        let server = lifetime(&given.server, server, "server");
        match (authority, server) {
            (Ok(authority), Ok(server)) if authority.duration < server.duration => {
                let message = "must not be longer than the duration of the authority, ca.duration";
                Err(vec![Problem::invalid(format!("{PATH}.server.duration"), message)])
            }
            (Ok(authority), Ok(server)) => Ok(Self { authority, server }),
            (authority, server) => {
                let problems = [authority.err(), server.err()];
                Err(problems.into_iter().flatten().flatten().collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use vireo_api::decode;
    use vireo_api::v1::KubeVirt;

    use super::*;

    const HOUR: i64 = 60 * 60;

    fn strategy(self_signed: Value) -> Result<Strategy, Vec<String>> {
        let kubevirt = json!({"spec": {"certificateRotateStrategy": {"selfSigned": self_signed}}});
        let spec = decode::object::<KubeVirt>(kubevirt).object.spec;
        Strategy::new(&spec).map_err(|problems| problems.into_iter().map(|one| one.field).collect())
    }

    #[test]
    fn lifetimes_are_as_given_or_the_default() {
        assert_eq!(Strategy::new(&KubeVirtSpec::default()), Ok(Strategy::default()));
        assert_eq!(strategy(json!({})), Ok(Strategy::default()));
        let given =
            json!({"ca": {"duration": "168h0m0s", "renewBefore": "48h"}, "server": {"duration": "24h"}});
        let lifetime = |duration, renew_before| Lifetime { duration, renew_before };
        assert_eq!(
            strategy(given),
            Ok(Strategy {
                authority: lifetime(168 * HOUR, 48 * HOUR),
                server: lifetime(24 * HOUR, 24 * HOUR / 5)
            })
        );
    }

    #[test]
    fn certificates_live_no_longer_than_their_authority() {
        let given = strategy(json!({"ca": {"duration": "24h"}})).unwrap();
        assert_eq!((given.authority.duration, given.server.duration), (24 * HOUR, 24 * HOUR));
    }

    #[test]
    fn lifetimes_that_cannot_be_are_named() {
        for (given, fields) in [
            (json!({"ca": {"duration": "a week"}}), &["ca.duration"][..]),
            (
                json!({"ca": {"duration": "-1h"}, "server": {"renewBefore": "0s"}}),
                &["ca.duration", "server.renewBefore"],
            ),
            (json!({"ca": {"duration": "48h", "renewBefore": "48h"}}), &["ca.renewBefore"]),
            (json!({"server": {"duration": "24h", "renewBefore": "1m"}}), &["server.renewBefore"]),
            (json!({"ca": {"duration": "24h"}, "server": {"duration": "25h"}}), &["server.duration"]),
        ] {
            let fields: Vec<String> = fields.iter().map(|field| format!("{PATH}.{field}")).collect();
            assert_eq!(strategy(given.clone()), Err(fields), "{given}");
        }
    }
}
