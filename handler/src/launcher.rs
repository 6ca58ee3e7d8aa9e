//! Launchers: started, found again, spoken to.

pub mod cgroup;
pub mod link;
pub mod process;
mod socket;
pub mod stop;
