use std::net::IpAddr;

use super::Field;
use super::report::Findings;
use super::syntax::{DNS_SUBDOMAIN, is_dns_subdomain};
use crate::v1;

/// How the guest resolves names, where a manifest says so.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dns {
    policy: DnsPolicy,
    nameservers: Vec<IpAddr>,
    searches: Vec<String>,
    subdomain: Option<String>,
}

/// Whose resolver it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DnsPolicy {
    /// The cluster's, where there is one, else the node's.
    #[default]
    ClusterFirst,
    /// The cluster's, even on the node's network.
    ClusterFirstWithHostNet,
    /// The node's.
    Default,
    /// Only what is written here.
    None,
}

impl Dns {
    /// Whose resolver it is.
    pub fn policy(&self) -> DnsPolicy {
        self.policy
    }

    /// At most 3; asked before the policy's.
    pub fn nameservers(&self) -> &[IpAddr] {
        &self.nameservers
    }

    /// At most 6; before the policy's.
    pub fn searches(&self) -> &[String] {
        &self.searches
    }

    /// The pod's subdomain.
    pub fn subdomain(&self) -> Option<&str> {
        self.subdomain.as_deref()
    }
}

pub(super) fn read(spec: &v1::VirtualMachineInstanceSpec, found: &mut Findings) -> Dns {
    let at = Field::new("spec");
    let policy = match spec.dns_policy.as_str() {
        "" | "ClusterFirst" => DnsPolicy::ClusterFirst,
        "ClusterFirstWithHostNet" => DnsPolicy::ClusterFirstWithHostNet,
        "Default" => DnsPolicy::Default,
        "None" => DnsPolicy::None,
        other => {
            found.not_supported(
                &at.at("dnsPolicy"),
                format!(
                    "{other:?} is no policy: write ClusterFirst, ClusterFirstWithHostNet, Default or None"
                ),
            );
            DnsPolicy::default()
        }
    };
    let subdomain = Some(spec.subdomain.clone()).filter(|name| !name.is_empty());
    if subdomain.as_deref().is_some_and(|name| !is_dns_subdomain(name)) {
        found.invalid(&at.at("subdomain"), format!("{:?} is no DNS name: {DNS_SUBDOMAIN}", spec.subdomain));
    }
    let config = config(spec.dns_config.as_ref(), policy, &at.at("dnsConfig"), found);
    let (nameservers, searches) = config.unwrap_or_default();
    Dns { policy, nameservers, searches, subdomain }
}

fn config(
    config: Option<&v1::PodDnsConfig>,
    policy: DnsPolicy,
    at: &Field,
    found: &mut Findings,
) -> Option<(Vec<IpAddr>, Vec<String>)> {
    if policy == DnsPolicy::None && config.is_none_or(|config| config.nameservers.is_empty()) {
        found.required(&at.at("nameservers"), "dnsPolicy None needs one name server at least");
    }
    let config = config?;
    let servers = at.at("nameservers");
    if config.nameservers.len() > 3 {
        found.invalid(&servers, format!("has {} entries: at most 3 are taken", config.nameservers.len()));
    }
    let mut nameservers = Vec::new();
    for (index, server) in config.nameservers.iter().enumerate() {
        match server.parse() {
            Ok(server) => nameservers.push(server),
            Err(_) => found.invalid(&servers.index(index), format!("{server:?} is no IP address: write one")),
        }
    }
    let searches = at.at("searches");
    if config.searches.len() > 6 || config.searches.iter().map(String::len).sum::<usize>() > 256 {
        found.invalid(&searches, "at most 6 domains of 256 characters together are taken");
    }
    for (index, domain) in config.searches.iter().enumerate() {
        if !is_dns_subdomain(domain) {
            found.invalid(&searches.index(index), format!("{domain:?} is no DNS name: {DNS_SUBDOMAIN}"));
        }
    }
    for (index, option) in config.options.iter().enumerate() {
        if option.name.is_empty() {
            found.required(&at.at("options").index(index).at("name"), "an option needs a name");
        }
    }
    found.notice_if(!config.options.is_empty(), &at.at("options"), "DHCP cannot tell resolver options");
    Some((nameservers, config.searches.clone()))
}
