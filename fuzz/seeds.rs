//! Writes inputs to begin with: `seeds DIRECTORY`, below which each target has a directory.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds DIRECTORY");
        return ExitCode::from(2);
    };
    let seeds = [
        vireo_vmm::fuzzing::seeds(),
        vireo_launcher::fuzzing::seeds(),
        vireo_handler::fuzzing::seeds(),
        vireo_importer::fuzzing::seeds(),
        vireo_fuzz::seeds(),
    ]
    .concat();
    for (number, (target, seed)) in seeds.into_iter().enumerate() {
        let directory = directory.join(target);
        let written = std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(directory.join(format!("seed-{number}")), seed));
        if let Err(error) = written {
            eprintln!("seeds: {}: {error}", directory.display());
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
