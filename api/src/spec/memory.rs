use vireo_vmconfig::HugePage;

use super::report::Findings;
use super::{Bytes, Field, MilliCpus, Problem, QuantityError};
use crate::v1::{self, Quantity};

/// Guest memory comes in whole pages.
const PAGE: u64 = 4096;
/// Blocks in which memory is attached: transparent huge pages.
const HOTPLUG_BLOCK: Bytes = Bytes::mebibytes(2);
/// The same with huge pages of 1 GiB.
const HOTPLUG_HUGE_BLOCK: Bytes = Bytes::mebibytes(1024);
/// The least memory of a guest into which more can be plugged.
const HOTPLUG_LEAST: Bytes = Bytes::mebibytes(1024);
/// What a guest cannot do with less than; KubeVirt's own limit for a request.
const LEAST: Bytes = Bytes::new(1_000_000);

/// The values of `memLock`.
const REQUIRED: &str = "Required";
const NOT_REQUIRED: &str = "NotRequired";

/// The guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    guest: Bytes,
    added_overhead: Bytes,
    is_locked: bool,
    huge_page: Option<HugePage>,
}

impl Memory {
    /// What the guest sees: whole pages of 4 KiB.
    pub fn guest(&self) -> Bytes {
        self.guest
    }

    /// What the launcher is given beside the guest's memory and what is calculated.
    pub fn added_overhead(&self) -> Bytes {
        self.added_overhead
    }

    /// Whether the launcher may lock all of its memory.
    pub fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// The huge pages that back it, of which it is a multiple.
    pub fn huge_page(&self) -> Option<HugePage> {
        self.huge_page
    }
}

/// The memory of the launcher's container or cgroup, where a manifest sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    cpu_request: Option<MilliCpus>,
    cpu_limit: Option<MilliCpus>,
    memory_request: Option<Bytes>,
    memory_limit: Option<Bytes>,
}

impl Resources {
    /// CPU time at least; the limit where only that is given.
    pub fn cpu_request(&self) -> Option<MilliCpus> {
        self.cpu_request
    }

    /// CPU time at most.
    pub fn cpu_limit(&self) -> Option<MilliCpus> {
        self.cpu_limit
    }

    /// Memory at least.
    pub fn memory_request(&self) -> Option<Bytes> {
        self.memory_request
    }

    /// Memory at most, the overhead not counted.
    pub fn memory_limit(&self) -> Option<Bytes> {
        self.memory_limit
    }
}

fn quantity<'a, T>(text: Option<&'a Quantity>, at: &Field, found: &mut Findings) -> Option<T>
where
    T: TryFrom<&'a Quantity, Error = QuantityError>,
{
    T::try_from(text?).map_err(|error| found.invalid(at, error.to_string())).ok()
}

pub(super) fn resources(given: &v1::ResourceRequirements, found: &mut Findings) -> Resources {
    let at = Field::new("spec.domain.resources");
    let (requests, limits) = (at.at("requests"), at.at("limits"));
    let mut read = Resources {
        cpu_request: quantity(given.requests.get("cpu"), &requests.at("cpu"), found),
        cpu_limit: quantity(given.limits.get("cpu"), &limits.at("cpu"), found),
        memory_request: quantity(given.requests.get("memory"), &requests.at("memory"), found),
        memory_limit: quantity(given.limits.get("memory"), &limits.at("memory"), found),
    };
    for (list, at) in [(&given.requests, &requests), (&given.limits, &limits)] {
        for (name, text) in list.iter().filter(|(name, _)| *name != "cpu" && *name != "memory") {
            let _: Option<Bytes> = quantity(Some(text), &at.at(name), found);
        }
    }
    if read.memory_request.is_some_and(|bytes| bytes < LEAST) {
        found.invalid(&requests.at("memory"), "is below 1M: ask for what a guest can run in, such as 128Mi");
    }
    if let (Some(request), Some(limit)) = (read.memory_request, read.memory_limit)
        && request > limit
    {
        found.invalid(&requests.at("memory"), format!("{request} is above the limit, which is {limit}"));
    }
    if let (Some(request), Some(limit)) = (read.cpu_request, read.cpu_limit)
        && request > limit
    {
        found.invalid(
            &requests.at("cpu"),
            format!("{}m is above the limit, which is {}m", request.get(), limit.get()),
        );
    }
    read.cpu_request = read.cpu_request.or(read.cpu_limit);
    read
}

/// What keeps memory from being plugged into the instances of a VirtualMachine that says how much there may be. As in
/// KubeVirt, a VirtualMachineInstance of its own is not asked.
pub fn memory_hotplug_problems(spec: &v1::VirtualMachineInstanceSpec) -> Vec<Problem> {
    let mut found = Findings::default();
    let at = Field::new("spec.domain.memory");
    let Some((memory, max)) =
        spec.domain.memory.as_ref().and_then(|memory| Some((memory, memory.max_guest.as_ref()?)))
    else {
        return Vec::new();
    };
    let (field, max_field) = (at.at("guest"), at.at("maxGuest"));
    let Some(guest) = &memory.guest else {
        found.required(&field, "Guest memory must be configured when memory hotplug is enabled");
        return found.problems;
    };
    let huge = memory.hugepages.as_ref().is_some_and(|pages| pages.page_size == "1Gi");
    let (block, block_name) = if huge { (HOTPLUG_HUGE_BLOCK, "1Gi") } else { (HOTPLUG_BLOCK, "2Mi") };
    let is_aligned = |bytes: Bytes| bytes.round_down(block.get()) == bytes;
    // An invalid quantity is reported where the memory is read.
    if let Ok(guest) = Bytes::try_from(guest) {
        if !is_aligned(guest) {
            found.invalid(&field, format!("Guest memory must be {block_name} aligned"));
        }
        if guest < HOTPLUG_LEAST {
            found.invalid(
                &field,
                "Memory hotplug is only available for VMs with at least 1Gi of guest memory",
            );
        }
    }
    if let Some(cpu) = spec.domain.cpu.as_deref() {
        let has_nodes = cpu.has_nodes_of_host();
        for (is_set, which) in
            [(cpu.realtime.is_some(), "realtime VMs"), (has_nodes, "guest mapping passthrough")]
        {
            if is_set {
                found.invalid(&field, format!("Memory hotplug is not compatible with {which}"));
            }
        }
    }
    if Bytes::try_from(max).is_ok_and(|max| !is_aligned(max)) {
        found.invalid(&max_field, format!("MaxGuest must be {block_name} aligned"));
    }
    found.problems
}

/// The guest's memory is `memory.guest`, else the request, else the limit, else one huge page, as KubeVirt's
/// defaulting has it. It is rounded down to whole pages.
pub(super) fn read(
    memory: Option<&v1::Memory>,
    given: &v1::ResourceRequirements,
    resources: &Resources,
    found: &mut Findings,
) -> Option<Memory> {
    let at = Field::new("spec.domain.memory");
    let empty = v1::Memory::default();
    let memory = memory.unwrap_or(&empty);
    let field = at.at("guest");
    let guest: Option<Bytes> = quantity(memory.guest.as_ref(), &field, found);
    let page_field = at.at("hugepages").at("pageSize");
    let huge_page =
        memory.hugepages.as_ref().and_then(|pages| huge_page(&pages.page_size, &page_field, found));
    let (added_overhead, is_locked) = overhead(memory.reserved_overhead.as_ref(), found);
    let max: Option<Bytes> = quantity(memory.max_guest.as_ref(), &at.at("maxGuest"), found);
    let one_page = huge_page.map(|page| Bytes::new(page.bytes()));
    let visible = guest.or(resources.memory_request).or(resources.memory_limit).or(one_page);
    if let (Some(max), Some(guest)) = (max, visible)
        && guest > max
    {
        found.invalid(&field, format!("{guest} is above maxGuest, which is {max}"));
    }
    found.notice_if(max.is_some(), &at.at("maxGuest"), "memory cannot be hotplugged yet");
    let is_set = memory.guest.is_some()
        || memory.hugepages.is_some()
        || given.requests.contains_key("memory")
        || given.limits.contains_key("memory");
    if !is_set {
        found.required_value(&field, "set the guest's memory, such as 256Mi");
        return None;
    }
    // KubeVirt's LiveUpdate roll-out, its default, admits more than the limit.
    let exceeds = guest.zip(resources.memory_limit).is_some_and(|(guest, limit)| guest > limit);
    let limit_field = Field::new("spec.domain.resources.limits.memory");
    found.notice_if(exceeds, &limit_field, "the limit is below the guest's memory");
    if guest.is_some_and(|guest| guest < LEAST) {
        found.invalid(&field, "is below 1M: give what a guest can run in, such as 128Mi");
        return None;
    }
    let guest = visible?;
    if guest < LEAST {
        if resources.memory_request.is_none() {
            found.invalid(&limit_field, "is below 1M: give what a guest can run in, such as 128Mi");
        }
        return None;
    }
    let guest = guest.round_down(PAGE);
    if let Some(page) = huge_page
        && guest.round_down(page.bytes()) != guest
    {
        found.invalid(&page_field, format!("the guest's memory, {guest}, is not a multiple of {page}"));
        return None;
    }
    Some(Memory { guest, added_overhead, is_locked, huge_page })
}

/// A size of huge pages that x86_64 has.
fn huge_page(size: &str, at: &Field, found: &mut Findings) -> Option<HugePage> {
    match size.parse::<Bytes>() {
        Err(error) => {
            found.invalid(at, error.to_string());
            None
        }
        Ok(bytes) => {
            let page = HugePage::of(bytes.get());
            if page.is_none() {
                found.unsupported_value(at, size, HugePage::NAMES);
            }
            page
        }
    }
}

/// What is added to the overhead, and whether memory may be locked.
fn overhead(reserved: Option<&v1::ReservedOverhead>, found: &mut Findings) -> (Bytes, bool) {
    let Some(reserved) = reserved else { return (Bytes::new(0), false) };
    let at = Field::new("spec.domain.memory.reservedOverhead");
    let added = quantity(reserved.added_overhead.as_ref(), &at.at("addedOverhead"), found);
    let mem_lock = reserved.mem_lock.as_deref().unwrap_or(NOT_REQUIRED);
    if ![REQUIRED, NOT_REQUIRED].contains(&mem_lock) {
        found.unsupported_value(&at.at("memLock"), mem_lock, &[NOT_REQUIRED, REQUIRED]);
    }
    (added.unwrap_or(Bytes::new(0)), mem_lock == REQUIRED)
}
