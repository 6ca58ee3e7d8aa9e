//! Kubernetes' API server without a cluster: a store, the API that serves it over TLS, and the controllers of what every
//! cluster has. The composing program adds [resources](resource::Resource), [admission](admission::Admission),
//! [parts of the API](http::ApiService) and [roles](rbac::defaults::Policy) of its own.
//!
//! [`store`] keeps objects and their history; [`resource`] is what is served, [`schema`] what its fields are, and
//! [`managed_fields`] whose; [`http`] answers as a Kubernetes API server does, behind the TLS and the credentials of [`server`],
//! or for a [`client`] in the same process, as many requests at a time as [`flow_control`] allows.
//! [`served_resources`] adds the CustomResourceDefinitions that [`definitions`] reconciles; [`accounts`]
//! gives every namespace a ServiceAccount, whose Secrets [`account_tokens`] fills; [`garbage_collector`] removes what was left
//! behind. [`auth`] authenticates users, and [`rbac`] authorizes them.

pub mod account_tokens;
pub mod accounts;
pub mod admission;
pub mod auth;
pub mod cause;
pub mod client;
pub mod controller;
pub mod definitions;
pub mod error;
pub mod files;
pub mod flow_control;
pub mod garbage_collector;
pub mod http;
pub mod json_path;
pub mod kubeconfig;
pub mod managed_fields;
pub mod meta;
pub mod objects;
pub mod openapi;
pub mod patch;
pub mod pki;
pub mod rbac;
pub mod resource;
pub mod schema;
pub mod selector;
pub mod served_resources;
pub mod server;
pub mod store;
