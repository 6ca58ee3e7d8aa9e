//! DNS names as targets of probes: resolved for each probe, by the name servers that the guest's lease contains.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::Name;
use vireo_proto::launcher::probe_request::Resolver;

use super::Failure;
use crate::fault::chain;

/// The port of name servers.
const DNS: u16 = 53;
/// How long one name server may take for an answer.
const ANSWER: Duration = Duration::from_secs(2);

/// Name servers and search domains.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) search: Vec<Name>,
}

impl TryFrom<Resolver> for Names {
    type Error = String;

    fn try_from(resolver: Resolver) -> Result<Self, String> {
        let server = |text: &String| {
            let address: IpAddr =
                text.parse().map_err(|_| format!("invalid name server address {text:?}"))?;
            Ok(SocketAddr::new(address, DNS))
        };
        let domain =
            |text: &String| text.parse().map_err(|error| format!("invalid search domain {text:?}: {error}"));
        Ok(Self {
            servers: resolver.servers.iter().map(server).collect::<Result<_, String>>()?,
            search: resolver.search_domains.iter().map(domain).collect::<Result<_, String>>()?,
        })
    }
}

impl Names {
    /// The addresses of a host; at least one. The caller has a deadline.
    pub(super) async fn lookup(&self, host: &str) -> Result<Vec<IpAddr>, Failure> {
        if self.servers.is_empty() {
            return Err(format!("cannot resolve {host}: the VM has no name server"));
        }
        let failed = |error: &dyn std::error::Error| format!("cannot resolve {host}: {}", chain(error));
        let resolver = self.resolver().map_err(|error| failed(&error))?;
        let found = resolver.lookup_ip(host).await.map_err(|error| failed(&error))?;
        let addresses: Vec<IpAddr> = found.iter().collect();
        if addresses.is_empty() {
            Err(format!("cannot resolve {host}: it has no address"))
        } else {
            Ok(addresses)
        }
    }

    /// A resolver without a cache: an answer may be another the next time.
    fn resolver(&self) -> Result<TokioResolver, hickory_resolver::net::NetError> {
        let server = |address: &SocketAddr| {
            let mut server = NameServerConfig::udp_and_tcp(address.ip());
            let on_port = |connection: &mut ConnectionConfig| connection.port = address.port();
            server.connections.iter_mut().for_each(on_port);
            server
        };
        let servers = self.servers.iter().map(server).collect();
        let config = ResolverConfig::from_parts(None, self.search.clone(), servers);
        let mut resolver = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
        let options: &mut ResolverOpts = resolver.options_mut();
        options.cache_size = 0;
        options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
        options.timeout = ANSWER;
        // The host's file does not apply to guests.
        options.use_hosts_file = ResolveHosts::Never;
        resolver.build()
    }
}
