//! Where the controllers of cgroups are: in the unified hierarchy, or, on hosts that are older or are set up so, each in one
//! of its own.

use std::fs;
use std::path::{Path, PathBuf};

/// What limits are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Memory.
    Memory,
    /// Threads and processes.
    Pids,
    /// CPU time.
    Cpu,
    /// Block I/O.
    Io,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Memory, Self::Pids, Self::Cpu, Self::Io];
    /// Those without which a launcher can take what it was not given.
    pub const REQUIRED: [Self; 3] = [Self::Memory, Self::Pids, Self::Cpu];

    /// The kernel's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Io => "io",
        }
    }

    /// The kernel's name in a hierarchy of its own.
    fn as_str_v1(self) -> &'static str {
        match self {
            Self::Io => "blkio",
            other => other.as_str(),
        }
    }
}

/// Finds the unified hierarchy in a mountinfo, proc(5).
pub(super) fn unified(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        (filesystem.split(' ').next()? == "cgroup2").then(|| mount.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// Finds this process's own cgroup of a controller with a hierarchy of its own, by a mountinfo and `/proc/self/cgroup`.
pub(super) fn own(controller: Controller, mounts: &str, own: &str) -> Option<PathBuf> {
    let has = |controllers: &str| controllers.split(',').any(|one| one == controller.as_str_v1());
    let line = own.lines().find(|line| line.split(':').nth(1).is_some_and(has))?;
    directory(mounts, line)
}

/// Finds the directory of a cgroup, which is a line of `/proc/PID/cgroup`, cgroups(7), by a mountinfo, proc(5). `None` where it is not
/// in what is mounted.
pub(super) fn directory(mounts: &str, cgroup: &str) -> Option<PathBuf> {
    let (controllers, cgroup) = cgroup.split_once(':')?.1.split_once(':')?;
    let (root, mounted) = mount(mounts, controllers)?;
    Some(Path::new(mounted).join(Path::new(cgroup).strip_prefix(root).ok()?))
}

/// Where the hierarchy with some controllers is mounted, and what of it: its root by the reader's cgroup namespace. Of mounts on top of
/// each other, which containers have, the last one is seen.
fn mount<'a>(mounts: &'a str, controllers: &str) -> Option<(&'a str, &'a str)> {
    mounts.lines().rev().find_map(|line| {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut filesystem = filesystem.split(' ');
        let kind = filesystem.next()?;
        // Controllers that share a hierarchy are all among the options of its mount, as is its name.
        let mut has =
            |option: &str| filesystem.nth(1).is_some_and(|all| all.split(',').any(|one| one == option));
        let is_its = match controllers.split(',').next()? {
            "" => kind == "cgroup2",
            first => kind == "cgroup" && has(first),
        };
        let mut fields = mount.split(' ').skip(3);
        is_its.then(|| Some((fields.next()?, fields.next()?)))?
    })
}

/// Lets the cgroups in a cgroup of the unified hierarchy use a controller. Returns whether they can.
pub(super) fn enable(cgroup: &Path, controller: Controller) -> bool {
    let name = controller.as_str();
    let has = |file: &str| {
        fs::read_to_string(cgroup.join(file)).is_ok_and(|text| text.split_whitespace().any(|one| one == name))
    };
    let file = "cgroup.subtree_control";
    has(file) || (has("cgroup.controllers") && fs::write(cgroup.join(file), format!("+{name}")).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "30 23 0:26 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:10 master:1 - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/1 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
34 30 0:31 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
";

    #[test]
    fn the_unified_hierarchy_is_found_wherever_it_is_mounted() {
        assert_eq!(unified(MOUNTS), Some(PathBuf::from("/sys/fs/cgroup/unified")));
        let legacy = "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        assert_eq!(unified(legacy), None);
    }

    #[test]
    fn a_controller_is_found_in_its_own_hierarchy() {
        let text =
            "5:cpu,cpuacct:/system.slice/vireo.service\n4:memory:/docker/1/a\n3:pids:/\n2:blkio:/a\n0::/\n";
        let find = |controller| own(controller, MOUNTS, text);
        let cpu = Path::new("/sys/fs/cgroup/cpu,cpuacct/system.slice/vireo.service");
        assert_eq!(find(Controller::Cpu).as_deref(), Some(cpu));
        assert_eq!(find(Controller::Memory).as_deref(), Some(Path::new("/sys/fs/cgroup/memory/a")));
        assert_eq!(find(Controller::Io).as_deref(), Some(Path::new("/sys/fs/cgroup/blkio/a")));
        assert_eq!(find(Controller::Pids), None, "it is not mounted");
        assert_eq!(own(Controller::Memory, MOUNTS, "4:memory:/elsewhere\n"), None);
        let covered = format!("{MOUNTS}40 30 0:29 / /node/memory rw - cgroup cgroup rw,memory\n");
        let seen = own(Controller::Memory, &covered, text);
        assert_eq!(seen.as_deref(), Some(Path::new("/node/memory/docker/1/a")));
    }
}
