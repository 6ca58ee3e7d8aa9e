use std::net::IpAddr;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Expose {
    /// What is exposed: vmi, vm or vmirs
    #[arg(value_name = "TYPE")]
    pub(crate) kind: String,
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) object: String,
    /// Name of the service
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Port that the service serves on [default: all ports of the network interfaces]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,
    /// Number or name of the port in the guest [default: that of the service]
    #[arg(long, value_name = "PORT", requires = "port")]
    pub(crate) target_port: Option<String>,
    /// Port on each node, of the type NodePort
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..), requires = "port")]
    pub(crate) node_port: Option<u16>,
    /// TCP or UDP
    #[arg(long, default_value = "TCP", value_parser = ["TCP", "UDP"])]
    pub(crate) protocol: String,
    /// ClusterIP, NodePort or LoadBalancer
    #[arg(long = "type", value_name = "TYPE", default_value = "ClusterIP",
          value_parser = ["ClusterIP", "NodePort", "LoadBalancer"])]
    pub(crate) service_type: String,
    /// Address of the service in the cluster; None makes it headless [default: the cluster chooses]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) cluster_ip: Option<String>,
    /// Another address at which nodes accept traffic for the service
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) external_ip: Option<IpAddr>,
    /// Address of the load balancer
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) load_balancer_ip: Option<IpAddr>,
    /// Name of the port
    #[arg(long, value_name = "NAME", requires = "port")]
    pub(crate) port_name: Option<String>,
    /// IPv4, IPv6, or both, separated by a comma, the preferred one first
    #[arg(long, value_name = "FAMILY", value_parser = ["IPv4", "IPv6", "IPv4,IPv6", "IPv6,IPv4"])]
    pub(crate) ip_family: Option<String>,
    /// SingleStack, PreferDualStack or RequireDualStack
    #[arg(long, value_name = "POLICY", value_parser = ["SingleStack", "PreferDualStack", "RequireDualStack"])]
    pub(crate) ip_family_policy: Option<String>,
}
