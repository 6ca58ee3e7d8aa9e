//! `virt-handler`, the node agent.

use std::process::ExitCode;

fn main() -> ExitCode {
    vireo_handler::program::main()
}
