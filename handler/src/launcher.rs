//! Launchers: started, found again, spoken to.

pub mod cgroup;
mod descent;
pub mod link;
pub mod process;
#[cfg(test)]
pub(crate) mod puppet;
mod socket;
pub mod stop;
