//! What a cluster gets: [`resource`] has KubeVirt's resources and their definitions, [`policy`] the roles, [`objects`] the
//! components. [`operator`] reconciles them with a KubeVirt object, and [`uninstall`] has it remove them.

pub mod installation;
pub mod objects;
pub mod operator;
pub mod policy;
pub mod program;
pub mod resource;
pub mod uninstall;
