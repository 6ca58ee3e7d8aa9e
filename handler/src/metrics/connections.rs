//! The connections of clients to guests: consoles, displays, forwarded ports and redirected USB devices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use vireo_api::v1::VirtualMachineInstance;
use vireo_client::metrics::{Labels, Metric, MetricSet, gauge};

use crate::manifests::Key;

const LAST: Metric = gauge(
    "kubevirt_vmi_last_api_connection_timestamp_seconds",
    "When a client connected the last time to the console, the display, a port or a USB slot of a VMI, in seconds since 1970.",
);

/// What a client is connected to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Endpoint {
    Console,
    Vnc,
    PortForward,
    UsbRedirection,
}

impl Endpoint {
    fn metric(self) -> Metric {
        match self {
            Self::Console => {
                gauge("kubevirt_console_active_connections", "Open connections to a VMI's console.")
            }
            Self::Vnc => gauge("kubevirt_vnc_active_connections", "Open connections to a VMI's display."),
            Self::UsbRedirection => {
                gauge("kubevirt_usbredir_active_connections", "Redirected USB devices of a VMI.")
            }
            Self::PortForward => {
                gauge("kubevirt_portforward_active_tunnels", "Open connections to forwarded ports of a VMI.")
            }
        }
    }
}

/// The connections of each VMI.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<BTreeMap<Key, OfVmi>>>);

#[derive(Debug, Default)]
struct OfVmi {
    /// Each endpoint that was connected once.
    active: BTreeMap<Endpoint, u64>,
    /// When the last one was opened, in seconds since 1970.
    last: u64,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, OfVmi>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a connection to a VMI until what is returned is dropped.
    pub(crate) fn open(&self, vmi: &VirtualMachineInstance, endpoint: Endpoint) -> Connection {
        let key = Key { namespace: vmi.metadata.namespace.clone(), name: vmi.metadata.name.clone() };
        let mut all = self.lock();
        let its = all.entry(key.clone()).or_default();
        its.last = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
        let active = its.active.entry(endpoint).or_default();
        *active = active.saturating_add(1);
        Connection { all: self.clone(), key, endpoint }
    }

    /// Adds the metrics of VMIs, and forgets others that have no connection.
    pub(super) fn add(&self, set: &mut MetricSet, vmis: &[Arc<VirtualMachineInstance>]) {
        let is_there = |key: &Key| {
            vmis.iter().any(|vmi| vmi.metadata.name == key.name && vmi.metadata.namespace == key.namespace)
        };
        let mut all = self.lock();
        all.retain(|key, its| its.active.values().any(|active| *active > 0) || is_there(key));
        for (key, its) in &*all {
            let labels = || -> Labels {
                vec![("namespace".into(), key.namespace.clone()), ("vmi".into(), key.name.clone())]
            };
            for (endpoint, active) in &its.active {
                set.add(&endpoint.metric(), labels(), Some((*active).into()));
            }
            set.add(&LAST, labels(), Some(its.last.into()));
        }
    }
}

/// A connection that is open.
#[derive(Debug)]
pub(crate) struct Connection {
    all: Connections,
    key: Key,
    endpoint: Endpoint,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(active) =
            self.all.lock().get_mut(&self.key).and_then(|its| its.active.get_mut(&self.endpoint))
        {
            *active = active.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use vireo_client::metrics::encode;

    use super::*;

    fn lines(connections: &Connections, vmis: &[Arc<VirtualMachineInstance>]) -> Vec<String> {
        let mut set = MetricSet::default();
        connections.add(&mut set, vmis);
        let text = encode(set, &[]).unwrap();
        text.lines()
            .filter(|line| line.contains("active"))
            .map(str::to_owned)
            .filter(|line| !line.starts_with('#'))
            .collect()
    }

    #[test]
    fn connections_are_counted_while_they_are_open() {
        let mut vmi = VirtualMachineInstance::default();
        (vmi.metadata.namespace, vmi.metadata.name) = ("n".to_owned(), "a".to_owned());
        let vmis = [Arc::new(vmi)];
        let connections = Connections::default();
        assert!(lines(&connections, &vmis).is_empty());
        let console = connections.open(&vmis[0], Endpoint::Console);
        let other = connections.open(&vmis[0], Endpoint::Console);
        let port = connections.open(&vmis[0], Endpoint::PortForward);
        let shown = |consoles: u32, ports: u32| {
            [
                format!("kubevirt_console_active_connections{{namespace=\"n\",vmi=\"a\"}} {consoles}"),
                format!("kubevirt_portforward_active_tunnels{{namespace=\"n\",vmi=\"a\"}} {ports}"),
            ]
        };
        assert_eq!(lines(&connections, &vmis), shown(2, 1));
        drop((console, port));
        assert_eq!(lines(&connections, &vmis), shown(1, 0));
        assert_eq!(lines(&connections, &[]), shown(1, 0), "one is open");
        drop(other);
        assert!(lines(&connections, &[]).is_empty(), "the VMI is gone");
        assert!(lines(&connections, &vmis).is_empty());
    }
}
