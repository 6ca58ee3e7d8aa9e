//! Links, addresses and routes over netlink, in whichever namespace the calling thread is.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::RawFd;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::packet_route::link::{InfoData, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::RouteAttribute;
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::NetworkError;

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

    /// Makes a veth pair, one end here, the other as `peer` in another namespace. An existing pair is kept.
    pub(super) async fn add_veth(
        &self,
        name: &str,
        peer: &str,
        namespace: RawFd,
    ) -> Result<(), NetworkError> {
        if self.find(name).await?.is_some() {
            return Ok(());
        }
        let far = LinkMessageBuilder::<LinkUnspec>::new().name(peer).setns_by_fd(namespace).build();
        let pair = LinkVeth::new(name, peer).set_info_data(InfoData::Veth(InfoVeth::Peer(far))).build();
        self.handle.link().add(pair).execute().await.map_err(failed(format!("make veth {name}")))
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

    /// Sets the default route to a gateway.
    pub(super) async fn default_route(&self, gateway: Ipv4Addr) -> Result<(), NetworkError> {
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
        let add = self.handle.route().add(route).replace();
        add.execute().await.map_err(failed(format!("route to {gateway}")))
    }

    /// Every IPv4 address of this namespace.
    pub(super) async fn addresses(&self) -> Result<Vec<Ipv4Addr>, NetworkError> {
        let mut found = Vec::new();
        let mut messages = self.handle.address().get().execute();
        while let Some(message) = messages.try_next().await.map_err(failed("list addresses"))? {
            found.extend(message.attributes.iter().filter_map(|attribute| match attribute {
                AddressAttribute::Address(IpAddr::V4(address))
                | AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
                _ => None,
            }));
        }
        Ok(found)
    }

    /// The MTU of the link that the default route leaves by, if there is one.
    pub(super) async fn uplink_mtu(&self) -> Result<Option<u32>, NetworkError> {
        let mut routes = self.handle.route().get(RouteMessageBuilder::<Ipv4Addr>::new().build()).execute();
        let mut uplink = None;
        while let Some(route) = routes.try_next().await.map_err(failed("list routes"))? {
            if route.header.destination_prefix_length == 0 {
                uplink = uplink.or(route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Oif(index) => Some(*index),
                    _ => None,
                }));
            }
        }
        let Some(index) = uplink else { return Ok(None) };
        let link = self.handle.link().get().match_index(index).execute().try_next().await;
        let link = link.map_err(failed("look at the uplink"))?;
        Ok(link.and_then(|link| {
            link.attributes.iter().find_map(|attribute| match attribute {
                LinkAttribute::Mtu(mtu) => Some(*mtu),
                _ => None,
            })
        }))
    }
}
