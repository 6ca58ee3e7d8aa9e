//! What node agents know of CPU models is what QEMU has.

#[test]
fn the_table_of_cpu_models_is_that_of_qemu() {
    let table = include_str!("../../api/src/cpu/models.txt");
    let qemu = vireo_tests::qemu_cpu::table().expect("QEMU 10 answers");
    for (line, of_qemu) in table.lines().zip(qemu.lines()) {
        assert_eq!(line, of_qemu, "`cargo run --bin cpu-models` writes the table of this QEMU");
    }
    assert_eq!(table.lines().count(), qemu.lines().count());
}
