//! Images of registries, where no kubelet pulls them.

mod config;
mod credentials;

use std::sync::Arc;

use vireo_importer::{Endpoint, Reference};

use super::importer::ImporterSettings;

pub use config::{Registries, RegistriesError};
pub use credentials::{CredentialsError, PullSecret};

/// How the images of registries are pulled on this node.
#[derive(Debug, Clone)]
pub struct RegistrySettings {
    /// What pulls them.
    pub importer: ImporterSettings,
    /// What is configured for registries.
    pub registries: Arc<Registries>,
}

impl Registries {
    /// The servers that are asked for an image: mirrors first, each with the credentials for it.
    pub(super) fn endpoints(&self, image: &Reference, secrets: &[PullSecret]) -> Vec<Endpoint> {
        let mut endpoints = self.servers(image.registry());
        for endpoint in &mut endpoints {
            let of_secrets =
                secrets.iter().filter_map(|secret| secret.credentials(&endpoint.host, image.repository()));
            endpoint.credentials.splice(0..0, of_secrets);
        }
        endpoints
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_shown_to_the_servers_it_is_for_alone() {
        let registries = Registries::parse(
            "mirrors: {docker.io: {endpoint: ['https://mirror.example']}}\n\
             configs: {mirror.example: {auth: {username: node, password: n}}}\n",
        )
        .unwrap();
        let secret = PullSecret::parse_config(
            br#"{"auths": {"https://index.docker.io/v1/": {"username": "u", "password": "p"}}}"#,
        )
        .unwrap();
        let endpoints = registries.endpoints(&"linux:1".parse().unwrap(), &[secret]);
        let shown: Vec<_> = endpoints
            .iter()
            .map(|one| (&*one.host, one.credentials.iter().map(|user| &*user.username).collect::<Vec<_>>()))
            .collect();
        assert_eq!(shown, [("mirror.example", vec!["node"]), ("docker.io", vec!["u"])]);
    }
}
