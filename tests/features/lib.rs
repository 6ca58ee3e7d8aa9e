//! Nothing but dependencies. Cargo builds a crate once for each set of features that is asked of it, and tests ask for more
//! than programs do: tokio alone, with all that depends on it, would be built for `cargo build --workspace`, again for
//! the tests, and be checked twice more for clippy and rustdoc. As ordinary dependencies of a member, these features are on in
//! each of them. A release is built of its own packages instead, so that none of this is in it; see `hack/release-images`.
