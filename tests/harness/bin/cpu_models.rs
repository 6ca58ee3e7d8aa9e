//! `cpu-models`: prints the CPU models of this host's QEMU, as `api/src/cpu/models.txt` has them.

use std::process::ExitCode;

fn main() -> ExitCode {
    match vireo_tests::qemu_cpu::table() {
        Ok(table) => {
            print!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cpu-models: {error}");
            ExitCode::FAILURE
        }
    }
}
