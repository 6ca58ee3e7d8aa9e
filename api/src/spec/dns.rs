use std::net::IpAddr;

use super::Field;
use super::report::Findings;
use super::syntax::{DNS_SUBDOMAIN, RFC_1123_SUBDOMAIN, fits_dns, is_dns_subdomain};
use crate::v1;

/// The most domains that are searched.
const SEARCH_PATHS: usize = 6;
/// The longest list of them, with a space between two.
const SEARCH_LIST: usize = 256;

/// The guest's resolver configuration, where a manifest has one.
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

    /// At most 6 domains that fit into DNS messages; before the policy's.
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
            found.unsupported_value(
                &at.at("dnsPolicy"),
                other,
                &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"],
            );
            DnsPolicy::default()
        }
    };
    let subdomain = Some(spec.subdomain.clone()).filter(|name| !name.is_empty());
    if subdomain.as_deref().is_some_and(|name| !is_dns_subdomain(name)) {
        found.invalid_value(&at.at("subdomain"), &spec.subdomain, DNS_SUBDOMAIN);
    }
    let config = config(spec.dns_config.as_deref(), policy, &at.at("dnsConfig"), found);
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
        found.required_value(&at.at("nameservers"), "at least one name server is needed with dnsPolicy None");
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
            Err(_) => found.invalid_value(&servers.index(index), server, "must be a valid IP address"),
        }
    }
    let searches = searches(&config.searches, &at.at("searches"), found);
    for (index, option) in config.options.iter().enumerate() {
        if option.name.is_empty() {
            found.required_value(&at.at("options").index(index).at("name"), "an option needs a name");
        }
    }
    found.notice_if(!config.options.is_empty(), &at.at("options"), "DHCP has no resolver options");
    Some((nameservers, searches))
}

/// The domains that are searched. A label that is too long for DNS is admitted, as KubeVirt does, and no resolver could
/// search it.
fn searches(domains: &[String], at: &Field, found: &mut Findings) -> Vec<String> {
    if domains.len() > SEARCH_PATHS {
        found.invalid(at, format!("must not have more than {SEARCH_PATHS} search paths"));
    }
    if domains.join(" ").len() > SEARCH_LIST {
        let detail =
            format!("must not have more than {SEARCH_LIST} characters (including spaces) in the search list");
        found.invalid(at, detail);
    }
    for (index, domain) in domains.iter().enumerate() {
        let at = at.index(index);
        if !is_dns_subdomain(domain) {
            found.invalid_value(&at, domain.as_str(), RFC_1123_SUBDOMAIN);
        }
        found.notice_if(!fits_dns(domain), &at, "a label has more than 63 characters");
    }
    domains.iter().filter(|domain| fits_dns(domain)).cloned().collect()
}
