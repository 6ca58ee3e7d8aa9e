use vireo_vmconfig::IoThreads;

use super::Problems;
use crate::launcher as wire;
use wire::io_threads::Policy;

impl From<IoThreads> for wire::IoThreads {
    fn from(threads: IoThreads) -> Self {
        let policy = match threads {
            IoThreads::Shared => Policy::Shared,
            IoThreads::Pool(_) => Policy::Pool,
            IoThreads::Supplemental(_) => Policy::Supplemental,
        };
        Self { policy: policy.into(), count: threads.count().into() }
    }
}

/// The threads of disks from their message; `None` where the hypervisor decides.
pub fn io_threads(problems: &mut Problems, threads: Option<wire::IoThreads>) -> Option<IoThreads> {
    let wire::IoThreads { policy, count } = threads?;
    let count = u16::try_from(count).ok().filter(|count| (1..=IoThreads::MAX).contains(count));
    let Some(count) = count else {
        problems.add("io_threads.count", format_args!("not 1 to {}", IoThreads::MAX));
        return None;
    };
    match problems.number::<Policy>("io_threads.policy", policy)? {
        Policy::Unspecified => None,
        Policy::Shared => Some(IoThreads::Shared),
        Policy::Pool => Some(IoThreads::Pool(count)),
        Policy::Supplemental => Some(IoThreads::Supplemental(count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_survive_the_message() {
        for threads in [IoThreads::Shared, IoThreads::Pool(4), IoThreads::Supplemental(IoThreads::MAX)] {
            let mut problems = Problems::default();
            assert_eq!(io_threads(&mut problems, Some(threads.into())), Some(threads));
            assert!(problems.is_empty());
        }
        let mut problems = Problems::default();
        assert_eq!(io_threads(&mut problems, None), None);
        let none = wire::IoThreads { policy: Policy::Pool.into(), count: 0 };
        assert_eq!(io_threads(&mut problems, Some(none)), None);
        assert_eq!(problems.into_texts(), ["io_threads.count: not 1 to 512"]);
    }
}
