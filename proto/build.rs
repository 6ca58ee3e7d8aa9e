//! Generates the types of the protocols. `protoc` comes from Debian's `protobuf-compiler` (hack/setup installs it).
fn main() -> Result<(), Box<dyn std::error::Error>> {
    tonic_prost_build::configure()
        .skip_debug([".vireo.launcher.v1.UserPassword"])
        .compile_protos(&["launcher.proto", "deviceplugin.proto"], &["."])?;
    Ok(())
}
