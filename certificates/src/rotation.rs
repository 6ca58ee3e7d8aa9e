//! When certificates and authorities are replaced.
//!
//! A new authority is *announced* before it issues: components read its certificate beside that of the one in use. When all of
//! them have read it, it issues all certificates anew, and the old authority stays trusted until no certificate of its own is
//! in use.

use crate::Error;
use crate::authority::{self, Facts, Pair, Subject};

/// How long certificates of a kind live, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// From when they are made until they end.
    pub duration: i64,
    /// How long before their end they are replaced.
    pub renew_before: i64,
}

/// How authorities are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// How long they live.
    pub lifetime: Lifetime,
    /// Seconds until all have read a new certificate: from the announcement of an authority until it issues, and after that until
    /// the former one is forgotten.
    pub propagation: i64,
}

/// The authorities of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorities {
    /// The name of all of them.
    pub name: &'static str,
    /// The one that issues.
    pub issuing: Pair,
    /// The one that is announced.
    pub announced: Option<Pair>,
    /// Certificates of those before, which are trusted as long as certificates of theirs may be in use.
    pub former: Vec<String>,
}

/// What happened to the authorities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The first one was made, or one that takes the place of one that has ended.
    Made,
    /// The next one was announced.
    Announced,
    /// The announced one issues from now on.
    Issues,
    /// Former ones are no longer trusted.
    Forgot,
}

impl Lifetime {
    /// That of certificates that are replaced when a fifth of their life is left, as KubeVirt's.
    pub const fn lasting(duration: i64) -> Self {
        Self { duration, renew_before: duration / 5 }
    }

    /// Whether a certificate is to be replaced.
    fn is_due(self, facts: &Facts, now: i64) -> bool {
        let until = facts.until.min(facts.made.saturating_add(self.duration));
        now >= until.saturating_sub(self.renew_before)
    }
}

impl Authorities {
    /// New ones.
    ///
    /// # Errors
    /// When none can be made.
    pub fn make(name: &'static str, lifetime: Lifetime, now: i64) -> Result<Self, Error> {
        let issuing = authority::make(name, now, lifetime.duration)?;
        Ok(Self { name, issuing, announced: None, former: Vec::new() })
    }

    /// What components trust: the certificates of all of them, in PEM.
    pub fn bundle(&self) -> String {
        let announced = self.announced.iter().map(|pair| pair.certificate.as_str());
        let former = self.former.iter().map(String::as_str);
        [self.issuing.certificate.as_str()].into_iter().chain(announced).chain(former).collect()
    }

    /// Whether a certificate is to be issued anew.
    pub fn is_due(&self, certificate: &str, wanted: &Subject, lifetime: Lifetime, now: i64) -> bool {
        let (Some(facts), Some(issuing)) = (Facts::of(certificate), Facts::of(&self.issuing.certificate))
        else {
            return true;
        };
        // Those of earlier releases have fewer names.
        let has_names = wanted.names.iter().all(|name| facts.names.contains(name));
        !has_names || !facts.is_issued_by(&issuing) || lifetime.is_due(&facts, now)
    }

    /// Whether all components have read certificates that the issuing authority made. What they use whose Secret is gone is
    /// not known.
    fn is_settled(&self, in_use: &[Option<String>], propagation: i64, now: i64) -> bool {
        let issuing = Facts::of(&self.issuing.certificate);
        let is_read = |certificate: &Option<String>| {
            let facts = certificate.as_deref().and_then(Facts::of).zip(issuing.as_ref());
            facts.is_some_and(|(facts, issuing)| {
                facts.is_issued_by(issuing) && now >= facts.made.saturating_add(propagation)
            })
        };
        in_use.iter().all(is_read)
    }

    /// Whether one is being replaced.
    pub fn are_changing(&self) -> bool {
        self.announced.is_some() || !self.former.is_empty()
    }

    /// Announces the next one, though it is not due. Not while one is being replaced: whether it was announced.
    ///
    /// # Errors
    /// When none can be made.
    pub fn announce(&mut self, lifetime: Lifetime, now: i64) -> Result<bool, Error> {
        if self.are_changing() {
            return Ok(false);
        }
        self.announced = Some(authority::make(self.name, now, lifetime.duration)?);
        Ok(true)
    }

    /// The next step, if there is one. `in_use` are the certificates that the components have, as far as they are known.
    ///
    /// # Errors
    /// When an authority cannot be made.
    pub fn rotate(
        &mut self,
        in_use: &[Option<String>],
        Rotation { lifetime, propagation }: Rotation,
        now: i64,
    ) -> Result<Option<Change>, Error> {
        let has_ended = |pair: &Pair| Facts::of(&pair.certificate).is_none_or(|facts| now >= facts.until);
        if has_ended(&self.issuing) {
            // Nothing that it issued is valid: there is nothing to wait for.
            let next = self.announced.take().filter(|next| !has_ended(next));
            *self = match next {
                Some(issuing) => Self { name: self.name, issuing, announced: None, former: Vec::new() },
                None => Self::make(self.name, lifetime, now)?,
            };
            return Ok(Some(Change::Made));
        }
        if let Some(next) = self.announced.take_if(|next| {
            Facts::of(&next.certificate).is_none_or(|facts| now >= facts.made.saturating_add(propagation))
        }) {
            let before = std::mem::replace(&mut self.issuing, next);
            self.former.insert(0, before.certificate);
            return Ok(Some(Change::Issues));
        }
        if !self.former.is_empty() && self.is_settled(in_use, propagation, now) {
            self.former.clear();
            return Ok(Some(Change::Forgot));
        }
        let is_due = Facts::of(&self.issuing.certificate).is_none_or(|facts| lifetime.is_due(&facts, now));
        // One at a time: the former one is forgotten first.
        if is_due && self.announce(lifetime, now)? {
            return Ok(Some(Change::Announced));
        }
        Ok(None)
    }

    /// A new certificate.
    ///
    /// # Errors
    /// When none can be made.
    pub fn issue(&self, wanted: &Subject, lifetime: Lifetime, now: i64) -> Result<Pair, Error> {
        authority::issue((self.name, &self.issuing), wanted, now, lifetime.duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;
    const DAY: i64 = 24 * 60 * 60;
    const AUTHORITY: Lifetime = Lifetime { duration: 10 * DAY, renew_before: 2 * DAY };
    const SERVER: Lifetime = Lifetime { duration: 3 * DAY, renew_before: DAY };

    const PROPAGATION: i64 = 4 * 60;
    const ROTATION: Rotation = Rotation { lifetime: AUTHORITY, propagation: PROPAGATION };

    fn server() -> Subject {
        Subject { name: "a".to_owned(), organizations: Vec::new(), names: vec!["a.example".to_owned()] }
    }

    fn issue(authorities: &Authorities, now: i64) -> String {
        authorities.issue(&server(), SERVER, now).unwrap().certificate
    }

    #[test]
    fn a_certificate_is_replaced_before_its_end_and_when_the_lifetime_is_shortened() {
        let authorities = Authorities::make("ca", AUTHORITY, NOW).unwrap();
        let issued = issue(&authorities, NOW);
        let due = |lifetime, after| authorities.is_due(&issued, &server(), lifetime, NOW + after);
        assert_eq!([0, DAY, 2 * DAY, 4 * DAY].map(|after| due(SERVER, after)), [false, false, true, true]);
        let shorter = Lifetime { duration: DAY, renew_before: DAY / 2 };
        assert_eq!([0, DAY / 2].map(|after| due(shorter, after)), [false, true]);
        assert!(authorities.is_due("nonsense", &server(), SERVER, NOW));
        let others = Authorities::make("ca", AUTHORITY, NOW).unwrap();
        assert!(others.is_due(&issued, &server(), SERVER, NOW));
    }

    /// A client that has read the authorities of the step before or of this one accepts the certificates of both.
    #[test]
    fn an_authority_is_replaced_step_by_step() {
        let mut authorities = Authorities::make("ca", AUTHORITY, NOW).unwrap();
        let first = authorities.issuing.certificate.clone();
        let old = issue(&authorities, NOW);
        let mut step = |in_use: &str, now| {
            let before = authorities.clone();
            let in_use = Some(in_use.to_owned()).filter(|certificate| !certificate.is_empty());
            let change = authorities.rotate(&[in_use], ROTATION, now).unwrap();
            let trusted = before.bundle();
            assert!(
                trusted.contains(&authorities.issuing.certificate),
                "{change:?}: announced before it issues"
            );
            (change, authorities.clone())
        };
        assert_eq!(step(&old, NOW + 7 * DAY).0, None);
        let (change, announced) = step(&old, NOW + 8 * DAY);
        assert_eq!(change, Some(Change::Announced));
        assert_eq!(announced.issuing.certificate, first);
        assert_eq!(announced.bundle().matches("BEGIN").count(), 2);
        assert_eq!(step(&old, NOW + 8 * DAY + PROPAGATION - 1).0, None);
        let switched = NOW + 8 * DAY + PROPAGATION;
        let (change, after) = step(&old, switched);
        assert_eq!(change, Some(Change::Issues));
        assert_ne!(after.issuing.certificate, first);
        assert!(after.bundle().contains(&first), "certificates of the old one are in use");
        assert!(after.is_due(&old, &server(), SERVER, switched));
        let new = issue(&after, switched);
        assert!(!after.is_due(&new, &server(), SERVER, switched));
        assert_eq!(step(&old, switched + DAY).0, None, "one is not replaced yet");
        assert_eq!(step(&new, switched + PROPAGATION - 1).0, None);
        assert_eq!(step("", switched + DAY).0, None, "it is not known what is in use");
        let (change, settled) = step(&new, switched + PROPAGATION);
        assert_eq!(change, Some(Change::Forgot));
        assert!(!settled.bundle().contains(&first));
        assert_eq!(step(&new, switched + DAY).0, None);
    }

    #[test]
    fn an_authority_that_has_ended_is_replaced_at_once() {
        let mut authorities = Authorities::make("ca", AUTHORITY, NOW).unwrap();
        let first = authorities.bundle();
        let change = authorities.rotate(&[], ROTATION, NOW + 11 * DAY).unwrap();
        assert_eq!(change, Some(Change::Made));
        assert!(!authorities.bundle().contains(&first));
        assert_eq!(authorities.bundle().matches("BEGIN").count(), 1);
    }

    #[test]
    fn one_authority_at_a_time_is_announced_on_demand() {
        let mut authorities = Authorities::make("ca", AUTHORITY, NOW).unwrap();
        let first = authorities.issuing.certificate.clone();
        assert!(authorities.announce(AUTHORITY, NOW).unwrap());
        assert!(!authorities.announce(AUTHORITY, NOW).unwrap(), "it is announced already");
        assert_eq!(authorities.rotate(&[], ROTATION, NOW + PROPAGATION).unwrap(), Some(Change::Issues));
        assert!(!authorities.announce(AUTHORITY, NOW).unwrap(), "the former one is still trusted");
        assert!(authorities.bundle().contains(&first));
        assert_eq!(authorities.rotate(&[], ROTATION, NOW + PROPAGATION).unwrap(), Some(Change::Forgot));
        assert!(authorities.announce(AUTHORITY, NOW).unwrap());
    }
}
