//! What a component shows to Prometheus and to the kubelet.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use clap::Args;
use jiff::Timestamp;
use tokio::net::TcpListener;
use tracing::info;
use vireo_client::metrics::{Metric, MetricSet};
use vireo_client::program::Failure;
use vireo_client::tls::{self, Clients, TlsFiles, TlsPolicy};

use crate::certificates::{Certificate, self_signed};
use crate::leader::Leadership;

/// Where a component that serves nothing else serves its metrics and its health.
#[derive(Debug, Clone, Args)]
pub struct Monitoring {
    /// Where it serves /metrics and /healthz, over TLS, without a client certificate.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "tls_dir")]
    metrics_listen: Option<SocketAddr>,
    /// The directory of its tls.crt and tls.key. For as long as they are not there, it makes itself a certificate.
    #[arg(long, value_name = "DIR")]
    tls_dir: Option<PathBuf>,
}

impl Monitoring {
    /// Serves routes with a certificate of this sort until it is dropped; nothing where that is not asked for.
    ///
    /// # Errors
    /// When it cannot listen, or has no certificate.
    pub async fn serve(
        self,
        certificate: Certificate,
        router: Router,
        policy: TlsPolicy,
    ) -> Result<(), Failure> {
        let (Some(address), Some(directory)) = (self.metrics_listen, self.tls_dir) else {
            return std::future::pending().await;
        };
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| format!("cannot listen on {address}: {error}"))?;
        let (own, key) = self_signed(certificate, Timestamp::now().as_second())?;
        let files = TlsFiles::server(directory, Clients::Anonymous, policy).with_initial(&own, &key)?;
        info!(listen = %address, "serves metrics");
        Ok(tls::serve(listener, Arc::new(files), router).await?)
    }
}

/// Metrics of a component of which one replica leads: whether this one can lead, which it can from its start, and leads.
pub fn add_leadership(set: &mut MetricSet, [ready, leading]: &[Metric; 2], leadership: &Leadership) {
    set.add(ready, Vec::new(), Some(1.into()));
    set.add(leading, Vec::new(), Some(u64::from(leadership.is_held()).into()));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, RootCertStore};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;

    use super::*;
    use crate::certificates::tests::issued;
    use crate::certificates::{METRICS_SERVER_NAME, VIRT_OPERATOR};

    /// Whether a server has the certificate of an authority, in PEM.
    async fn is_certified(address: SocketAddr, authority: &str) -> bool {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject as _;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from(METRICS_SERVER_NAME).unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_ok()
    }

    #[tokio::test]
    async fn it_serves_before_there_is_a_certificate_and_with_it_later() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap();
        drop(free);
        let directory = std::env::temp_dir().join(format!("vireo-monitoring-{}", uuid::Uuid::new_v4()));
        let monitoring = Monitoring { metrics_listen: Some(address), tls_dir: Some(directory.clone()) };
        let server = tokio::spawn(async move {
            monitoring
                .serve(VIRT_OPERATOR, Router::new(), TlsPolicy::default())
                .await
                .map_err(|error| error.to_string())
        });
        while TcpStream::connect(address).await.is_err() {
            assert!(!server.is_finished(), "{:?}", server.await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (authority, certificate, key) = issued(VIRT_OPERATOR);
        assert!(!is_certified(address, &authority).await);
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("tls.key"), key).unwrap();
        std::fs::write(directory.join("tls.crt"), certificate).unwrap();
        let certified = is_certified(address, &authority).await;
        // What was read stays when the files go.
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!([certified, is_certified(address, &authority).await], [true, true]);
        server.abort();
    }
}
