//! CPUs of the host that a VM has for itself: each vCPU's thread runs on one of them, and all other threads of the VM on the
//! one that is theirs, or on all.

use std::io;
use std::sync::Arc;

use procfs::process::Process;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tracing::{error, info};
use vireo_proto::launcher::Fault;
use vireo_vmconfig::CpuPlacement;
use vireo_vmm::config::ThreadKind;

use crate::fault::{Code, fault_at};
use crate::launch::Launch;

/// Which threads of a VM run where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pinning {
    /// The CPU of each vCPU.
    vcpus: Vec<usize>,
    /// The CPUs of all other threads.
    others: Vec<usize>,
}

impl Pinning {
    /// That of a VM that requests it, on CPUs which this process may use.
    ///
    /// # Errors
    /// When these are too few.
    pub fn of(launch: &Launch) -> Result<Option<Arc<Self>>, Fault> {
        let Some(placement) = &launch.cpu_placement else { return Ok(None) };
        let field = &launch.fields.dedicated_cpus;
        let failed = |why: String| fault_at(Code::HostResource, field, format!("{field}: {why}"));
        let allowed =
            allowed().map_err(|error| failed(format!("cannot find the CPUs of the launcher: {error}")))?;
        let vcpus = usize::try_from(launch.cpu.count()).unwrap_or(usize::MAX);
        let pinning = Self::choose(placement, vcpus, &allowed).map_err(failed)?;
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
        let others = match (placement.isolate_emulator_thread, rest.first()) {
            (true, Some(own)) => vec![*own],
            _ => cpus.clone(),
        };
        Ok(Self { vcpus: cpus, others })
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
        let threads = Process::new(pid).and_then(|process| process.tasks()).map_err(io::Error::other)?;
        let threads: Vec<_> = threads
            .flatten()
            .filter_map(|thread| Some((vcpu_of_qemu(&thread.stat().ok()?.comm)?, thread.tid)))
            .collect();
        for (number, cpu) in self.vcpus.iter().enumerate() {
            let thread = threads.iter().find(|(vcpu, _)| *vcpu == number);
            let (_, tid) = thread.ok_or_else(|| io::Error::other(format!("vCPU {number} has no thread")))?;
            move_to(Pid::from_raw(*tid), &[*cpu])?;
        }
        Ok(())
    }

    /// Moves the calling thread of the monitor. The launcher ends where the kernel refuses.
    pub fn pin_this(&self, kind: ThreadKind) {
        let thread = std::thread::current();
        let number = match kind {
            ThreadKind::Vcpu => {
                thread.name().and_then(|name| name.strip_prefix("vcpu")?.parse::<usize>().ok())
            }
            _ => None,
        };
        let cpu = number.and_then(|number| self.vcpus.get(number)).copied();
        let moved = match cpu {
            Some(cpu) => move_to(None, &[cpu]),
            None => move_to(None, &self.others),
        };
        if let Err(error) = moved {
            error!(thread = thread.name(), %error, "a thread cannot run on its CPU: the launcher ends");
            std::process::exit(1);
        }
    }
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
    use super::*;
    use crate::launch::sample;

    fn placement(cpus: &[u32], isolate_emulator_thread: bool) -> CpuPlacement {
        CpuPlacement { cpus: cpus.to_vec(), isolate_emulator_thread }
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
            assert_eq!(pinning, Pinning { vcpus: vcpus.to_vec(), others }, "{given:?} {isolate}");
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
        let pinning = Pinning { vcpus: vec![last], others: vec![first] };
        for (name, kind, cpu) in [("vcpu0", ThreadKind::Vcpu, last), ("disk", ThreadKind::Device, first)] {
            let pinning = pinning.clone();
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                pinning.pin_this(kind);
                allowed().unwrap()
            });
            assert_eq!(thread.unwrap().join().unwrap(), [cpu], "{name}");
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
}
