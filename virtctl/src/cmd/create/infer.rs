use vireo_api::v1::Matcher;

use super::FlagError;
use super::volumes::Storage;
use crate::cli::Infer;

const IGNORE: &str = "Ignore";

/// Inference of an instance type or a preference that is not named.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    flag: &'static str,
    flag_from: &'static str,
    whether: Option<bool>,
    from: Option<&'a str>,
}

impl<'a> Asked<'a> {
    pub(super) fn instancetype(args: &'a Infer) -> Self {
        Self {
            flag: "infer-instancetype",
            flag_from: "infer-instancetype-from",
            whether: args.infer_instancetype,
            from: args.infer_instancetype_from.as_deref(),
        }
    }

    pub(super) fn preference(args: &'a Infer) -> Self {
        Self {
            flag: "infer-preference",
            flag_from: "infer-preference-from",
            whether: args.infer_preference,
            from: args.infer_preference_from.as_deref(),
        }
    }

    /// The volume to infer from. Unless a flag names it, its labels may be absent.
    pub(super) fn of(&self, storage: &Storage) -> Result<Option<Matcher>, FlagError> {
        let ask = |volume: &str, policy: Option<&str>| Matcher {
            infer_from_volume: volume.to_owned(),
            infer_from_volume_failure_policy: policy.map(str::to_owned),
            ..Matcher::default()
        };
        match (self.from, self.whether) {
            (Some(volume), _) => {
                knows(storage, volume).map_err(|message| FlagError::new(self.flag_from, message))?;
                Ok(Some(ask(volume, None)))
            }
            (None, Some(false)) => Ok(None),
            (None, Some(true)) => {
                let volume = storage.first().ok_or("at least one volume is needed to infer from".to_owned());
                let volume = volume.and_then(|volume| knows(storage, volume).map(|()| volume));
                let volume = volume.map_err(|message| FlagError::new(self.flag, message))?;
                Ok(Some(ask(volume, None)))
            }
            (None, None) => {
                let volume = storage.first().filter(|volume| knows(storage, volume).is_ok());
                Ok(volume.map(|volume| ask(volume, Some(IGNORE))))
            }
        }
    }
}

/// Whether a VM is created without what cannot be inferred.
pub(super) fn is_optional(matcher: &Matcher) -> bool {
    matcher.infer_from_volume_failure_policy.as_deref() == Some(IGNORE)
}

/// Whether a volume can be inferred from; why not.
fn knows(storage: &Storage, name: &str) -> Result<(), String> {
    let volume = storage.volumes.iter().find(|volume| volume.name == name);
    match volume.map(|volume| volume.persistent_volume_claim.is_some()) {
        Some(true) => Ok(()),
        Some(false) => {
            Err(format!("the volume {name:?} is not a claim: only claims have labels to infer from"))
        }
        None => Err(format!("volume {name:?} not found")),
    }
}
