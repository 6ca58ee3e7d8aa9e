//! `vireo standalone`: the KubeVirt API on one machine, without a cluster.
//!
//! [`store`] keeps objects and their history; [`resource`] is the table of what is served, and [`schema`] what its
//! fields are, and [`fields`] whose; [`http`] answers as a Kubernetes API server does, behind the TLS and the credentials
//! of [`server`]. [`machines`] runs the node agent on it, in this process, [`vms`] starts and stops machines for those
//! who own them, with what [`instancetypes`] makes of their templates, [`replicasets`] keeps the number of instances
//! and [`pools`] that of machines, [`claims`] makes and keeps disks, [`uploads`] fills them, [`catalog`]
//! knows what is served beside the table, by the CustomResourceDefinitions that [`definitions`] sees to,
//! [`nodes`] says what this machine is and [`placement`] what it does not take, [`accounts`] gives every namespace one,
//! whose Secrets [`account_tokens`] fills, and [`collect`] removes what was left behind. [`auth`] knows who somebody is,
//! and [`rbac`] what they may do.

pub mod account_tokens;
pub mod accounts;
pub mod admission;
pub mod admit;
pub mod auth;
pub mod catalog;
mod children;
pub mod claims;
pub mod collect;
pub mod definitions;
pub mod fields;
pub mod files;
mod host_paths;
pub mod http;
pub mod instancetypes;
pub mod kubeconfig;
pub mod machines;
pub mod meta;
pub mod nodes;
pub mod objects;
pub mod patch;
pub mod pki;
pub mod place;
pub mod placement;
pub mod policy;
pub mod pools;
pub mod rbac;
pub mod replicasets;
pub mod resource;
mod rounds;
pub mod run;
pub mod schema;
pub mod selector;
pub mod server;
pub mod store;
pub mod uploads;
pub mod virt_api;
pub mod vms;
