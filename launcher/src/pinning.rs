//! CPUs of the host that a VM has for itself: each vCPU's thread runs on one of them, and all other threads of the VM on the
//! one that is theirs, or on all. The guest may have the NUMA nodes of these CPUs, and vCPUs that are scheduled in real time.

use std::io;
use std::sync::Arc;

use procfs::process::Process;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::{error, info};
use vireo_proto::launcher::Fault;
use vireo_vmconfig::{CpuPlacement, GuestNuma, HostNode, HugePage};
use vireo_vmm::config::{Starting, ThreadKind};
use vireo_vmm::sys::schedule::set_realtime;

use crate::fault::{Code, fault_at};
use crate::launch::Launch;

/// Which threads of a VM run where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pinning {
    /// The CPU of each vCPU.
    vcpus: Vec<usize>,
    /// The CPUs of all other threads.
    others: Vec<usize>,
    /// The NUMA nodes of the guest.
    numa: Option<GuestNuma>,
    /// The vCPUs that are scheduled in real time.
    realtime: Vec<u32>,
}

impl Pinning {
    /// That of a VM that requests it, on CPUs which this process may use.
    ///
    /// # Errors
    /// When these are too few, or their NUMA nodes have too little.
    pub fn of(launch: &Launch) -> Result<Option<Arc<Self>>, Fault> {
        let Some(placement) = &launch.cpu_placement else { return Ok(None) };
        let field = &launch.fields.dedicated_cpus;
        let failed = |why: String| fault_at(Code::HostResource, field, format!("{field}: {why}"));
        let allowed =
            allowed().map_err(|error| failed(format!("cannot find the CPUs of the launcher: {error}")))?;
        let vcpus = usize::try_from(launch.cpu.count()).unwrap_or(usize::MAX);
        let mut pinning = Self::choose(placement, vcpus, &allowed).map_err(failed)?;
        if let Some(host) = &placement.numa {
            pinning.numa = Some(numa(launch, host, &pinning.vcpus)?);
        }
        info!(?pinning, "the VM has CPUs of its own");
        Ok(Some(Arc::new(pinning)))
    }

    fn choose(placement: &CpuPlacement, vcpus: usize, allowed: &[usize]) -> Result<Self, String> {
        let is_given = |cpu: &usize| {
            placement.cpus.is_empty()
                || placement.cpus.iter().any(|given| usize::try_from(*given) == Ok(*cpu))
        };
        let mut cpus: Vec<usize> = allowed.iter().copied().filter(is_given).collect();
        let needed = vcpus.saturating_add(usize::from(placement.isolate_emulator_thread));
        if cpus.len() < needed {
            return Err(format!(
                "{needed} CPUs are needed, and the launcher may use {} of its own",
                cpus.len()
            ));
        }
        let rest = cpus.split_off(vcpus);
        let realtime = placement.realtime.clone().unwrap_or_default();
        let others = match (placement.isolate_emulator_thread, rest.first()) {
            (true, Some(own)) => vec![*own],
            _ => shared(&cpus, &realtime),
        };
        Ok(Self { vcpus: cpus, others, numa: None, realtime })
    }

    /// The NUMA nodes of the guest, if it has those of the host.
    pub fn numa(&self) -> Option<&GuestNuma> {
        self.numa.as_ref()
    }

    /// Moves all threads of this process, and so what it starts, to the CPUs that are not those of vCPUs alone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn confine_process(&self) -> io::Result<()> {
        let threads = Process::myself().and_then(|process| process.tasks()).map_err(io::Error::other)?;
        for thread in threads.flatten() {
            move_to(Pid::from_raw(thread.tid), &self.others)?;
        }
        Ok(())
    }

    /// Moves the vCPUs' threads of QEMU to their CPUs.
    ///
    /// # Errors
    /// When one is not there, or the kernel refuses.
    pub fn pin_qemu(&self, pid: i32) -> io::Result<()> {
        for (thread, cpu) in self.threads_of_qemu(pid)?.into_iter().zip(&self.vcpus) {
            move_to(Pid::from_raw(thread), &[*cpu])?;
        }
        Ok(())
    }

    /// Has the vCPUs' threads of QEMU scheduled in real time that are to be.
    ///
    /// # Errors
    /// When one is not there, or the kernel refuses.
    pub fn schedule_qemu(&self, pid: i32) -> io::Result<()> {
        if self.realtime.is_empty() {
            return Ok(());
        }
        for (number, thread) in self.threads_of_qemu(pid)?.into_iter().enumerate() {
            if self.is_realtime(number) {
                set_realtime(thread)?;
            }
        }
        Ok(())
    }

    /// The threads of the vCPUs, in their order.
    fn threads_of_qemu(&self, pid: i32) -> io::Result<Vec<i32>> {
        let threads = Process::new(pid).and_then(|process| process.tasks()).map_err(io::Error::other)?;
        let threads: Vec<_> = threads
            .flatten()
            .filter_map(|thread| Some((vcpu_of_qemu(&thread.stat().ok()?.comm)?, thread.tid)))
            .collect();
        let of = |number| {
            let thread = threads.iter().find(|(vcpu, _)| *vcpu == number);
            let absent = || io::Error::other(format!("vCPU {number} has no thread"));
            thread.map(|(_, tid)| *tid).ok_or_else(absent)
        };
        (0..self.vcpus.len()).map(of).collect()
    }

    fn is_realtime(&self, vcpu: usize) -> bool {
        self.realtime.iter().any(|number| usize::try_from(*number) == Ok(vcpu))
    }

    /// Moves the calling thread of the monitor, which has just started. The launcher ends where the kernel refuses.
    pub fn pin_this(&self, kind: ThreadKind) {
        let number = match kind {
            ThreadKind::Vcpu => vcpu_of_this(),
            _ => None,
        };
        self.move_this(number);
        if number.is_some_and(|number| self.is_realtime(number))
            && let Err(error) = set_realtime(0)
        {
            error!(number, %error, "a vCPU cannot run in real time: the launcher ends");
            std::process::exit(1);
        }
    }

    /// Keeps a vCPU off its CPU while it starts the thread of a device, which begins where the vCPU is. A vCPU in real time would
    /// not let it begin on its own CPU, and wait in a loop for the device.
    pub fn unpin_while_starting(&self, starting: Starting) {
        let Some(number) = vcpu_of_this() else { return };
        self.move_this(match starting {
            Starting::Before => None,
            Starting::After => Some(number),
        });
    }

    /// Moves the calling thread to the CPU of a vCPU, or to those of other threads.
    fn move_this(&self, vcpu: Option<usize>) {
        let moved = match vcpu.and_then(|number| self.vcpus.get(number)) {
            Some(cpu) => move_to(None, &[*cpu]),
            None => move_to(None, &self.others),
        };
        if let Err(error) = moved {
            let thread = std::thread::current();
            error!(thread = thread.name(), %error, "a thread cannot run on its CPU: the launcher ends");
            std::process::exit(1);
        }
    }
}

/// The number of the vCPU that the calling thread of the monitor runs.
fn vcpu_of_this() -> Option<usize> {
    std::thread::current().name()?.strip_prefix("vcpu")?.parse().ok()
}

/// The CPUs of vCPUs that others may share: not of those that are scheduled in real time, unless all are. What such a vCPU waits
/// for in a loop would wait for the vCPU.
fn shared(cpus: &[usize], realtime: &[u32]) -> Vec<usize> {
    let waits = |(vcpu, _): &(u32, usize)| !realtime.contains(vcpu);
    let usual: Vec<usize> = (0..).zip(cpus.iter().copied()).filter(waits).map(|(_, cpu)| cpu).collect();
    if usual.is_empty() { cpus.to_vec() } else { usual }
}

/// The NUMA nodes of a guest whose vCPUs have these CPUs of the host.
fn numa(launch: &Launch, host: &[HostNode], cpus: &[usize]) -> Result<GuestNuma, Fault> {
    let field = &launch.fields.numa;
    let Some(page) = launch.huge_page else {
        return Err(fault_at(Code::Invalid, field, format!("{field}: the memory is in no huge pages")));
    };
    let numa = GuestNuma::of(host, cpus, launch.memory_bytes, page);
    let numa = numa.map_err(|error| fault_at(Code::HostResource, field, format!("{field}: {error}")))?;
    match lacking(&numa, host, page) {
        None => Ok(numa),
        Some(why) => {
            let field = &launch.fields.huge_pages;
            Err(fault_at(Code::HostResource, field, format!("{field} {why}")))
        }
    }
}

/// What a node of the host has too little of, which the hypervisor's own error would not say.
fn lacking(numa: &GuestNuma, host: &[HostNode], page: HugePage) -> Option<String> {
    numa.nodes().iter().find_map(|node| {
        let free = host.iter().find(|of| of.id == node.host)?.free_huge_pages?;
        let (count, id, size) = (node.memory / page.bytes(), node.host, page.bytes() >> 10);
        (free < count).then(|| {
            format!(
                "requests {count} huge pages of {page} of NUMA node {id}, where {free} are free: reserve more with \
                 /sys/devices/system/node/node{id}/hugepages/hugepages-{size}kB/nr_hugepages"
            )
        })
    })
}

/// The number of the vCPU that a thread of QEMU runs, by its name: `CPU 0/KVM`.
fn vcpu_of_qemu(name: &str) -> Option<usize> {
    name.strip_prefix("CPU ")?.split_once('/')?.0.parse().ok()
}

/// The CPUs that this thread may run on.
fn allowed() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Has a thread, or the calling one, run on these CPUs alone.
fn move_to(thread: Option<Pid>, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(thread, &set)?)
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::{Cpu, CpuModel, CpuTopology, GuestNode};

    use super::*;
    use crate::launch::sample;

    fn placement(cpus: &[u32], isolate_emulator_thread: bool) -> CpuPlacement {
        CpuPlacement { cpus: cpus.to_vec(), isolate_emulator_thread, ..CpuPlacement::default() }
    }

    #[test]
    fn vcpus_have_a_cpu_each() {
        for (given, isolate, vcpus, others) in [
            (&[][..], false, [2, 3], vec![2, 3]),
            (&[], true, [2, 3], vec![5]),
            (&[3, 5, 8, 9], false, [3, 5], vec![3, 5]),
            (&[3, 5, 8, 9], true, [3, 5], vec![8]),
        ] {
            let pinning = Pinning::choose(&placement(given, isolate), 2, &[2, 3, 5, 8]).unwrap();
            assert_eq!(
                pinning,
                Pinning { vcpus: vcpus.to_vec(), others, ..Pinning::default() },
                "{given:?} {isolate}"
            );
        }
        let error = Pinning::choose(&placement(&[3], true), 2, &[2, 3, 5, 8]).unwrap_err();
        assert_eq!(error, "3 CPUs are needed, and the launcher may use 1 of its own");
    }

    #[test]
    fn threads_of_qemu_are_found_by_their_names() {
        assert_eq!(vcpu_of_qemu("CPU 0/KVM"), Some(0));
        assert_eq!(vcpu_of_qemu("CPU 253/TCG"), Some(253));
        for other in ["CPU x/KVM", "ALL CPUs/TCG", "IO mon_iothread", "CPU 1"] {
            assert_eq!(vcpu_of_qemu(other), None, "{other}");
        }
    }

    #[test]
    fn a_thread_of_a_vcpu_runs_on_its_cpu() {
        let all = allowed().unwrap();
        let (first, last) = (*all.first().unwrap(), *all.last().unwrap());
        let pinning = Pinning { vcpus: vec![last], others: vec![first], ..Pinning::default() };
        for (name, kind, cpu) in [("vcpu0", ThreadKind::Vcpu, last), ("disk", ThreadKind::Device, first)] {
            let pinning = pinning.clone();
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                pinning.pin_this(kind);
                let began = allowed().unwrap();
                pinning.unpin_while_starting(Starting::Before);
                let started = std::thread::spawn(|| allowed().unwrap()).join().unwrap();
                pinning.unpin_while_starting(Starting::After);
                (began, started, allowed().unwrap())
            });
            assert_eq!(thread.unwrap().join().unwrap(), (vec![cpu], vec![first], vec![cpu]), "{name}");
        }
        assert!(pinning.pin_qemu(std::process::id().cast_signed()).is_err(), "this process has no vCPU");
    }

    #[test]
    fn too_few_cpus_are_reported_with_the_field() {
        assert_eq!(Pinning::of(&sample::kernel_boot()).unwrap(), None);
        let launch = Launch { cpu_placement: Some(placement(&[1023], false)), ..sample::kernel_boot() };
        let fault = Pinning::of(&launch).unwrap_err();
        assert_eq!((fault.code(), fault.field.as_str()), (Code::HostResource, "dedicatedCpuPlacement"));
    }

    #[test]
    fn the_guest_has_the_nodes_of_its_cpus_that_have_pages_for_it() {
        let own = *allowed().unwrap().first().unwrap();
        let node = |id, cpus: Vec<usize>, free_huge_pages| HostNode {
            id,
            cpus: cpus.into_iter().filter_map(|cpu| u32::try_from(cpu).ok()).collect(),
            free_huge_pages,
            ..HostNode::default()
        };
        let of = |nodes: Vec<HostNode>, huge_page| {
            let cpu = Cpu::new(CpuTopology::new(1, 1, 1).unwrap(), CpuModel::HostModel, Vec::new());
            let placement = CpuPlacement { numa: Some(nodes), ..CpuPlacement::default() };
            let launch = Launch { cpu, cpu_placement: Some(placement), huge_page, ..sample::kernel_boot() };
            Pinning::of(&launch).map(|pinning| pinning.unwrap().numa().cloned())
        };
        let page = Some(HugePage::Mib2);
        let numa = of(vec![node(0, vec![], Some(0)), node(1, vec![own], Some(128))], page).unwrap().unwrap();
        assert_eq!(numa.nodes(), [GuestNode { host: 1, vcpus: vec![0], memory: 256 << 20 }]);
        for (nodes, page, field, detail) in [
            (vec![], page, "numa", "numa: the node has no NUMA topology"),
            (vec![node(0, vec![own], None)], None, "numa", "numa: the memory is in no huge pages"),
            (
                vec![node(1, vec![own], Some(127))],
                page,
                "hugepages",
                "hugepages requests 128 huge pages of 2Mi of NUMA node 1, where 127 are free: reserve more with \
                 /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
            ),
        ] {
            let fault = of(nodes, page).unwrap_err();
            assert_eq!((&*fault.field, &*fault.detail), (field, detail));
        }
    }

    #[test]
    fn vcpus_of_the_mask_are_scheduled_in_real_time() {
        let placement = CpuPlacement { realtime: Some(vec![1]), ..CpuPlacement::default() };
        let pinning = Pinning::choose(&placement, 2, &[2, 3]).unwrap();
        assert_eq!([0, 1, 2].map(|vcpu| pinning.is_realtime(vcpu)), [false, true, false]);
        for (mask, isolate_emulator_thread, others) in [
            (vec![1], false, vec![2]),
            (vec![], false, vec![2, 3]),
            (vec![0, 1], false, vec![2, 3]),
            (vec![0, 1], true, vec![4]),
        ] {
            let placement = CpuPlacement {
                realtime: Some(mask.clone()),
                isolate_emulator_thread,
                ..CpuPlacement::default()
            };
            let chosen = Pinning::choose(&placement, 2, &[2, 3, 4]).unwrap();
            assert_eq!(chosen.others, others, "{mask:?}");
        }
        let usual = Pinning::choose(&CpuPlacement::default(), 2, &[2, 3]).unwrap();
        assert!(usual.schedule_qemu(0).is_ok(), "no thread is looked for");
        let error = pinning.schedule_qemu(std::process::id().cast_signed()).unwrap_err();
        assert_eq!(error.to_string(), "vCPU 0 has no thread");
    }
}
