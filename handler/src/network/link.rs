//! Links, addresses and routes over netlink, in whichever namespace the calling thread is.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use futures_util::TryStreamExt as _;
use ipnet::Ipv4Net;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::{Handle, LinkBridge, LinkBridgePort, LinkUnspec, LinkVeth, RouteMessageBuilder};
use vireo_vmconfig::MacAddr;

use super::NetworkError;
use super::bridge::{PodInterface, Route};

/// `ENODEV`: no such link.
const NO_DEVICE: i32 = 19;

/// A netlink connection for one namespace.
pub(super) struct Links {
    handle: Handle,
}

/// Runs work with a netlink connection on the calling thread, in its namespace.
pub(super) fn with_links<T, F>(work: impl FnOnce(Links) -> F) -> Result<T, NetworkError>
where
    F: Future<Output = Result<T, NetworkError>>,
{
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(NetworkError::Netlink)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetworkError::Netlink)?;
        tokio::spawn(connection);
        work(Links { handle }).await
    })
}

fn failed(what: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> NetworkError {
    let what = what.into();
    move |error| NetworkError::Kernel { what, source: as_io(error) }
}

fn as_io(error: rtnetlink::Error) -> io::Error {
    match error {
        rtnetlink::Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}

impl Links {
    async fn find(&self, name: &str) -> Result<Option<LinkMessage>, NetworkError> {
        match self.handle.link().get().match_name(name).execute().try_next().await {
            Ok(found) => Ok(found),
            Err(rtnetlink::Error::NetlinkError(message))
                if message.to_io().raw_os_error() == Some(NO_DEVICE) =>
            {
                Ok(None)
            }
            Err(error) => Err(failed(format!("look for link {name}"))(error)),
        }
    }

    async fn index(&self, name: &str) -> Result<u32, NetworkError> {
        let found = self.find(name).await?;
        found.map(|link| link.header.index).ok_or_else(|| NetworkError::Kernel {
            what: format!("find link {name}"),
            source: io::Error::from_raw_os_error(NO_DEVICE),
        })
    }

    /// Whether there is a link of this name.
    pub(super) async fn exists(&self, name: &str) -> Result<bool, NetworkError> {
        Ok(self.find(name).await?.is_some())
    }

    /// Makes a veth pair in this namespace. An existing link of the first name is kept.
    pub(super) async fn add_veth(&self, name: &str, peer: &str) -> Result<(), NetworkError> {
        if self.exists(name).await? {
            return Ok(());
        }
        let pair = LinkVeth::new(name, peer).build();
        self.handle.link().add(pair).execute().await.map_err(failed(format!("make veth {name}")))
    }

    /// Moves a link to another namespace, where no link has its name.
    pub(super) async fn move_to(&self, name: &str, namespace: BorrowedFd<'_>) -> Result<(), NetworkError> {
        let index = self.index(name).await?;
        let moved = LinkUnspec::new_with_index(index).setns_by_fd(namespace.as_raw_fd()).build();
        self.handle.link().set(moved).execute().await.map_err(failed(format!("move {name} to its namespace")))
    }

    /// The alias of a link.
    pub(super) async fn alias(&self, name: &str) -> Result<Option<String>, NetworkError> {
        let link = self.find(name).await?;
        Ok(link.iter().flat_map(|link| &link.attributes).find_map(|attribute| match attribute {
            LinkAttribute::IfAlias(alias) => Some(alias.clone()),
            _ => None,
        }))
    }

    /// Gives a link an alias.
    pub(super) async fn set_alias(&self, name: &str, alias: &str) -> Result<(), NetworkError> {
        let set = LinkUnspec::new_with_index(self.index(name).await?).alias(alias).build();
        self.handle.link().set(set).execute().await.map_err(failed(format!("give {name} an alias")))
    }

    /// Removes a link, and with a veth its other end. None is success.
    pub(super) async fn remove(&self, name: &str) -> Result<(), NetworkError> {
        let Some(link) = self.find(name).await? else { return Ok(()) };
        self.handle
            .link()
            .del(link.header.index)
            .execute()
            .await
            .map_err(failed(format!("remove link {name}")))
    }

    /// Gives a link its MTU and address and sets it up.
    pub(super) async fn raise(
        &self,
        name: &str,
        address: Option<(Ipv4Addr, u8)>,
        mtu: Option<u32>,
    ) -> Result<(), NetworkError> {
        let index = self.index(name).await?;
        if let Some((address, prefix)) = address {
            let add = self.handle.address().add(index, IpAddr::V4(address), prefix).replace();
            add.execute().await.map_err(failed(format!("give {name} the address {address}/{prefix}")))?;
        }
        let up = LinkUnspec::new_with_index(index).up();
        let up = match mtu {
            Some(mtu) => up.mtu(mtu),
            None => up,
        };
        self.handle.link().set(up.build()).execute().await.map_err(failed(format!("set {name} up")))
    }

    /// Gives a link an IPv6 address, which is usable at once.
    pub(super) async fn add_ipv6(
        &self,
        name: &str,
        address: Ipv6Addr,
        prefix: u8,
    ) -> Result<(), NetworkError> {
        let mut add =
            self.handle.address().add(self.index(name).await?, IpAddr::V6(address), prefix).replace();
        add.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        add.execute().await.map_err(failed(format!("give {name} the address {address}/{prefix}")))
    }

    /// Sets the default route of the gateway's family.
    pub(super) async fn default_route(&self, gateway: IpAddr) -> Result<(), NetworkError> {
        let route = match gateway {
            IpAddr::V4(gateway) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build(),
            IpAddr::V6(gateway) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(gateway).build(),
        };
        let add = self.handle.route().add(route).replace();
        add.execute().await.map_err(failed(format!("route to {gateway}")))
    }

    /// Every address of this namespace.
    pub(super) async fn addresses(&self) -> Result<Vec<IpAddr>, NetworkError> {
        let mut found = Vec::new();
        let mut messages = self.handle.address().get().execute();
        while let Some(message) = messages.try_next().await.map_err(failed("list addresses"))? {
            found.extend(message.attributes.iter().filter_map(|attribute| match attribute {
                AddressAttribute::Address(address) | AddressAttribute::Local(address) => Some(*address),
                _ => None,
            }));
        }
        Ok(found)
    }

    /// The addresses of a link by which it is reached from elsewhere; none of a link that is not there.
    pub(super) async fn global_addresses(&self, name: &str) -> Result<Vec<IpAddr>, NetworkError> {
        let Some(link) = self.find(name).await? else { return Ok(Vec::new()) };
        let messages = self.addresses_of(link.header.index).await?;
        Ok(messages.iter().filter_map(global).collect())
    }

    /// The MTU of the link that the default route leaves by, if there is one; of IPv4 before that of IPv6.
    pub(super) async fn uplink_mtu(&self) -> Result<Option<u32>, NetworkError> {
        let ipv4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let ipv6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
        let mut uplinks = self.uplinks(ipv4, |_| true).await?;
        if uplinks.is_empty() && super::ipv6::is_available() {
            uplinks = self.uplinks(ipv6, |_| true).await?;
        }
        let Some(index) = uplinks.first() else { return Ok(None) };
        Ok(self.by_index(*index).await?.as_ref().and_then(mtu))
    }

    /// The links that have a default route by router advertisements.
    pub(super) async fn advertised_uplinks(&self) -> Result<BTreeSet<String>, NetworkError> {
        let is_advertised = |route: &RouteMessage| route.header.protocol == RouteProtocol::Ra;
        let mut names = BTreeSet::new();
        for index in self.uplinks(RouteMessageBuilder::<Ipv6Addr>::new().build(), is_advertised).await? {
            let link = self.by_index(index).await?;
            names.extend(link.iter().flat_map(|link| &link.attributes).find_map(|one| match one {
                LinkAttribute::IfName(name) => Some(name.clone()),
                _ => None,
            }));
        }
        Ok(names)
    }

    /// The links of default routes.
    async fn uplinks(
        &self,
        of: RouteMessage,
        is_wanted: impl Fn(&RouteMessage) -> bool,
    ) -> Result<Vec<u32>, NetworkError> {
        let mut routes = self.handle.route().get(of).execute();
        let mut uplinks = Vec::new();
        while let Some(route) = routes.try_next().await.map_err(failed("list routes"))? {
            if route.header.destination_prefix_length == 0
                && route.header.kind == RouteType::Unicast
                && is_wanted(&route)
            {
                uplinks.extend(route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Oif(index) => Some(*index),
                    _ => None,
                }));
            }
        }
        Ok(uplinks)
    }

    async fn by_index(&self, index: u32) -> Result<Option<LinkMessage>, NetworkError> {
        let link = self.handle.link().get().match_index(index).execute().try_next().await;
        link.map_err(failed("look at the uplink"))
    }

    /// Makes a bridge of a MAC. An existing one is kept.
    pub(super) async fn add_bridge(&self, name: &str, mac: MacAddr) -> Result<(), NetworkError> {
        if self.find(name).await?.is_some() {
            return Ok(());
        }
        // Without a querier on the bridge, snooping would stop multicast that the guest has subscribed to.
        let bridge = LinkBridge::new(name).mcast_snooping(false).address(mac.octets().to_vec()).build();
        self.handle.link().add(bridge).execute().await.map_err(failed(format!("make bridge {name}")))
    }

    /// Puts a link into a bridge.
    pub(super) async fn set_controller(&self, name: &str, bridge: &str) -> Result<(), NetworkError> {
        let (index, bridge_index) = (self.index(name).await?, self.index(bridge).await?);
        let put = LinkUnspec::new_with_index(index).controller(bridge_index).build();
        self.handle.link().set(put).execute().await.map_err(failed(format!("put {name} into {bridge}")))
    }

    /// Has a bridge learn no addresses from one of its links.
    pub(super) async fn stop_learning(&self, name: &str) -> Result<(), NetworkError> {
        let port = LinkBridgePort::new(self.index(name).await?).learning(false).build();
        let set = self.handle.link().set_port(port).execute().await;
        set.map_err(failed(format!("set the bridge port {name}")))
    }

    /// Sets a link down.
    pub(super) async fn lower(&self, name: &str) -> Result<(), NetworkError> {
        let down = LinkUnspec::new_with_index(self.index(name).await?).down().build();
        self.handle.link().set(down).execute().await.map_err(failed(format!("set {name} down")))
    }

    /// The MAC of a link.
    pub(super) async fn mac(&self, name: &str) -> Result<Option<[u8; 6]>, NetworkError> {
        Ok(self.find(name).await?.as_ref().and_then(mac))
    }

    /// Gives a link another MAC.
    pub(super) async fn set_mac(&self, name: &str, mac: MacAddr) -> Result<(), NetworkError> {
        let set = LinkUnspec::new_with_index(self.index(name).await?).address(mac.octets().to_vec()).build();
        self.handle.link().set(set).execute().await.map_err(failed(format!("give {name} the MAC {mac}")))
    }

    /// Removes the addresses of a family from a link.
    pub(super) async fn flush(&self, name: &str, family: AddressFamily) -> Result<(), NetworkError> {
        for message in self.addresses_of(self.index(name).await?).await? {
            if message.header.family == family {
                let removed = self.handle.address().del(message).execute().await;
                removed.map_err(failed(format!("remove the addresses of {name}")))?;
            }
        }
        Ok(())
    }

    async fn addresses_of(&self, index: u32) -> Result<Vec<AddressMessage>, NetworkError> {
        let mut found = Vec::new();
        let mut messages = self.handle.address().get().set_link_index_filter(index).execute();
        while let Some(message) = messages.try_next().await.map_err(failed("list addresses"))? {
            found.push(message);
        }
        Ok(found)
    }

    /// An interface of a Pod as it is; `None` where there is none of the name.
    pub(super) async fn pod_interface(&self, name: &str) -> Result<Option<PodInterface>, NetworkError> {
        let Some(link) = self.find(name).await? else { return Ok(None) };
        let index = link.header.index;
        let mut routes = Vec::new();
        let mut messages = self.handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
        while let Some(message) = messages.try_next().await.map_err(failed("list routes"))? {
            routes.extend(route_by(&message, index));
        }
        let addresses = self.addresses_of(index).await?;
        Ok(Some(PodInterface {
            name: name.to_owned(),
            mac: mac(&link).unwrap_or_default(),
            mtu: mtu(&link).unwrap_or(super::LARGEST_MTU),
            address: addresses.iter().find_map(ipv4),
            routes,
        }))
    }
}

fn mac(link: &LinkMessage) -> Option<[u8; 6]> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(mac) => mac.as_slice().try_into().ok(),
        _ => None,
    })
}

fn mtu(link: &LinkMessage) -> Option<u32> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

/// An IPv4 address with the prefix of its network.
fn ipv4(message: &AddressMessage) -> Option<Ipv4Net> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(IpAddr::V4(address)) => {
            Ipv4Net::new(*address, message.header.prefix_len).ok()
        }
        _ => None,
    })
}

/// An address by which a link is reached from elsewhere.
fn global(message: &AddressMessage) -> Option<IpAddr> {
    if let Some(net) = ipv4(message) {
        return Some(net.addr().into());
    }
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(IpAddr::V6(address)) => {
            super::ipv6::is_global(*address).then_some(IpAddr::V6(*address))
        }
        _ => None,
    })
}

/// A route by a link, unless the kernel made it for an address.
fn route_by(message: &RouteMessage, index: u32) -> Option<Route> {
    let header = &message.header;
    let is_ours = header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast
        && header.protocol != RouteProtocol::Kernel
        && message.attributes.iter().any(|one| matches!(one, RouteAttribute::Oif(oif) if *oif == index));
    if !is_ours {
        return None;
    }
    let address = |of: fn(&RouteAttribute) -> Option<&RouteAddress>| {
        message.attributes.iter().find_map(of).and_then(|address| match address {
            RouteAddress::Inet(address) => Some(*address),
            _ => None,
        })
    };
    let destination = address(|one| match one {
        RouteAttribute::Destination(address) => Some(address),
        _ => None,
    });
    let gateway = address(|one| match one {
        RouteAttribute::Gateway(address) => Some(address),
        _ => None,
    });
    let destination = destination.unwrap_or(Ipv4Addr::UNSPECIFIED);
    let destination = Ipv4Net::new(destination, header.destination_prefix_length).ok()?;
    Some(Route { destination, gateway })
}
