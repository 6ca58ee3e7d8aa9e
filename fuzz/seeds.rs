//! Writes inputs to begin with: `seeds DIRECTORY`, below which each target of the features has a directory.
#![no_main]

use std::path::PathBuf;

// A fuzz target that ends before it begins: what is built for coverage needs libFuzzer, which has the `main`.
libfuzzer_sys::fuzz_target!(
    init: write_and_exit(),
    |_script: &[u8]| {}
);

fn write_and_exit() {
    std::process::exit(write())
}

/// The exit code.
fn write() -> i32 {
    let Some(directory) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: seeds DIRECTORY");
        return 2;
    };
    let seeds = [
        #[cfg(feature = "vmm")]
        vireo_vmm::fuzzing::seeds(),
        #[cfg(feature = "launcher")]
        vireo_launcher::fuzzing::seeds(),
        #[cfg(feature = "handler")]
        vireo_handler::fuzzing::seeds(),
        #[cfg(feature = "importer")]
        vireo_importer::fuzzing::seeds(),
        #[cfg(feature = "api")]
        vireo_fuzz::seeds(),
    ]
    .concat();
    for (number, (target, seed)) in seeds.into_iter().enumerate() {
        let directory = directory.join(target);
        let written = std::fs::create_dir_all(&directory)
            .and_then(|()| std::fs::write(directory.join(format!("seed-{number}")), seed));
        if let Err(error) = written {
            eprintln!("seeds: {}: {error}", directory.display());
            return 1;
        }
    }
    0
}
