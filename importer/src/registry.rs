//! One server with one user.

use std::io;
use std::time::Duration;

use oci_client::client::{BlobResponse, Certificate, CertificateEncoding, ClientConfig, ClientProtocol};
use oci_client::errors::OciDistributionError;
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};

use crate::failure::causes;
use crate::{Credentials, Endpoint, Failure, FailureKind};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long it may send nothing.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// How long it may take for a document or a token: the node agent waits for a minute for all servers of an image.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Documents that describe images.
const MANIFESTS: [&str; 4] = [
    OCI_IMAGE_MEDIA_TYPE,
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
];

/// A server, and who asks it.
pub(crate) struct Registry {
    client: Client,
    /// The image there.
    image: Reference,
    auth: RegistryAuth,
    host: String,
}

impl Registry {
    /// Connects with nothing yet.
    ///
    /// # Errors
    /// When the certificates are not certificates.
    pub(crate) fn new(
        image: &Reference,
        endpoint: &Endpoint,
        credentials: Option<&Credentials>,
    ) -> Result<Self, Failure> {
        let pem = endpoint.authorities.iter().flat_map(|authorities| split(authorities));
        let certificate = |pem: &str| Certificate { encoding: CertificateEncoding::Pem, data: pem.into() };
        let config = ClientConfig {
            protocol: if endpoint.is_plain { ClientProtocol::Http } else { ClientProtocol::Https },
            accept_invalid_certificates: endpoint.skip_verify,
            extra_root_certificates: pem.map(certificate).collect(),
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(READ_TIMEOUT),
            user_agent: concat!("virt-importer/", env!("CARGO_PKG_VERSION")),
            ..ClientConfig::default()
        };
        let host = endpoint.host.clone();
        let client = Client::try_from(config)
            .map_err(|error| Failure::new(FailureKind::Other, format!("{host}: {}", causes(&error))))?;
        let mut image = image.clone();
        if host != image.registry() {
            image.set_mirror_registry(host.clone());
        }
        let auth = credentials.map_or(RegistryAuth::Anonymous, |Credentials { username, password }| {
            RegistryAuth::Basic(username.clone(), password.clone())
        });
        Ok(Self { client, image, auth, host })
    }

    fn failed(&self) -> impl Fn(OciDistributionError) -> Failure {
        |error| Failure::of_registry(&self.host, &error)
    }

    /// What the server did wrong.
    pub(crate) fn invalid(&self, what: &str) -> Failure {
        Failure::new(FailureKind::Invalid, format!("{}: {what}", self.host))
    }

    /// What has become of a download.
    pub(crate) fn broken_off(&self, error: &io::Error) -> Failure {
        let message = format!("{}: the download broke off: {}", self.host, causes(error));
        Failure::new(FailureKind::Other, message)
    }

    /// Shows who asks.
    pub(crate) async fn authenticate(&self) -> Result<(), Failure> {
        let asked = self.client.auth(&self.image, &self.auth, RegistryOperation::Pull);
        self.in_time(asked).await.map(drop)
    }

    /// A manifest or an index: that of the reference, or the one with a digest. Its digest was compared.
    pub(crate) async fn manifest(&self, digest: Option<&str>) -> Result<Vec<u8>, Failure> {
        let image = match digest {
            Some(digest) => self.image.clone_with_digest(digest.to_owned()),
            None => self.image.clone(),
        };
        let asked = self.client.pull_manifest_raw(&image, &self.auth, &MANIFESTS);
        self.in_time(asked).await.map(|(bytes, _)| bytes.to_vec())
    }

    /// The answer to what does not take long.
    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, OciDistributionError>>,
    ) -> Result<T, Failure> {
        let late = |_| {
            let message =
                format!("{}: it does not answer within {} s", self.host, DOCUMENT_TIMEOUT.as_secs());
            Failure::new(FailureKind::Unreachable, message)
        };
        tokio::time::timeout(DOCUMENT_TIMEOUT, asked).await.map_err(late)?.map_err(self.failed())
    }

    /// A blob from an offset.
    pub(crate) async fn blob(&self, digest: &str, offset: u64) -> Result<BlobResponse, Failure> {
        let got = match offset {
            // A server may refuse ranges.
            0 => self.client.pull_blob_stream(&self.image, digest).await.map(BlobResponse::Full),
            offset => self.client.pull_blob_stream_partial(&self.image, digest, offset, None).await,
        };
        got.map_err(self.failed())
    }
}

/// The certificates of a file with several.
fn split(pem: &str) -> Vec<&str> {
    const END: &str = "-----END CERTIFICATE-----";
    pem.split_inclusive(END).filter(|part| part.contains(END)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_several_certificates() {
        let one = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        assert_eq!(split(&format!("# a\n{one}# b\n{one}# c\n")).len(), 2);
        assert!(split("").is_empty());
    }
}
