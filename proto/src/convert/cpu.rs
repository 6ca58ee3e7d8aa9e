use vireo_vmconfig::{Cpu, CpuFeature, CpuTopology};

use super::Problems;
use crate::launcher as wire;

impl From<&Cpu> for wire::Cpu {
    fn from(cpu: &Cpu) -> Self {
        Self {
            sockets: cpu.sockets(),
            cores: cpu.cores(),
            threads: cpu.threads(),
            model: cpu.model().as_str().to_owned(),
            features: cpu.features().iter().map(Into::into).collect(),
        }
    }
}

impl From<&CpuFeature> for wire::CpuFeature {
    fn from(feature: &CpuFeature) -> Self {
        Self { name: feature.name().to_owned(), enabled: feature.is_enabled() }
    }
}

/// The vCPUs from their message; `None` if a part has a problem. A count of zero is the default, one.
pub fn cpu(problems: &mut Problems, cpu: wire::Cpu) -> Option<Cpu> {
    let [sockets, cores, threads] = [cpu.sockets, cpu.cores, cpu.threads].map(|count| count.max(1));
    let topology = CpuTopology::new(sockets, cores, threads).map_err(|error| problems.add("cpu", error)).ok();
    let model = cpu.model.parse().map_err(|error| problems.add("cpu.model", error)).ok();
    let features = cpu.features.iter().filter_map(|feature| {
        let feature = CpuFeature::new(&feature.name, feature.enabled);
        feature.map_err(|error| problems.add("cpu.features", error)).ok()
    });
    let features = features.collect();
    Some(Cpu::new(topology?, model?, features))
}

#[cfg(test)]
mod tests {
    use vireo_vmconfig::CpuModel;

    use super::*;

    #[test]
    fn vcpus_survive_the_message() {
        let topology = CpuTopology::new(2, 3, 4).unwrap();
        let features =
            || [("avx2", true), ("x2apic", false)].map(|(name, on)| CpuFeature::new(name, on).unwrap());
        for model in [CpuModel::HostModel, CpuModel::HostPassthrough, CpuModel::Named("Nehalem".to_owned())] {
            let expected = Cpu::new(topology, model, features().into());
            let mut problems = Problems::default();
            assert_eq!(cpu(&mut problems, wire::Cpu::from(&expected)), Some(expected));
            assert!(problems.is_empty());
        }
    }

    #[test]
    fn defaults_are_one_vcpu_of_the_hosts_model_and_problems_have_paths() {
        let mut problems = Problems::default();
        let default = cpu(&mut problems, wire::Cpu::default()).unwrap();
        assert_eq!((default.count(), default.model()), (1, &CpuModel::HostModel));
        let bad = wire::Cpu {
            sockets: 255,
            model: "a,b".to_owned(),
            features: vec![wire::CpuFeature { name: String::new(), enabled: true }],
            ..wire::Cpu::default()
        };
        assert_eq!(cpu(&mut problems, bad), None);
        let texts = problems.into_texts();
        let paths: Vec<_> = texts.iter().filter_map(|text| text.split_once(": ")).map(|(at, _)| at).collect();
        assert_eq!(paths, ["cpu", "cpu.model", "cpu.features"]);
    }
}
