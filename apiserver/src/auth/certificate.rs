//! Who has a certificate: its common name is the user, its organizations are the groups.

use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{KNOWN, User};

/// The user of a certificate that is verified already. None if it has no common name.
pub fn user_of(certificate: &[u8]) -> Option<User> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    let groups = subject.iter_organization().filter_map(|group| group.as_str().ok());
    let groups = groups.chain([KNOWN]).map(str::to_owned).collect();
    Some(User { name, groups, ..User::default() }).filter(|user| !user.name.is_empty())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn subject_of(subject: &[(DnType, &str)]) -> Option<User> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, text) in subject {
            params.distinguished_name.push(kind.clone(), *text);
        }
        user_of(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
    }

    #[test]
    fn names_and_organizations_are_users_and_groups() {
        let ada = subject_of(&[(DnType::CommonName, "ada"), (DnType::OrganizationName, "dev")]);
        assert_eq!(ada, Some(User::named("ada", &["dev", KNOWN])));
        assert_eq!(subject_of(&[(DnType::CommonName, "bob")]), Some(User::named("bob", &[KNOWN])));
        assert_eq!(subject_of(&[(DnType::OrganizationName, "dev")]), None);
        assert_eq!(subject_of(&[(DnType::CommonName, "")]), None);
        assert_eq!(user_of(b"nonsense"), None);
    }
}
