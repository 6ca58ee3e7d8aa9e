use vireo_api::spec::Vm;
use vireo_api::v1::{
    API_VERSION, Matcher, Memory, ObjectMeta, VM_KIND, VMI_KIND, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, VirtualMachineInstanceTemplateSpec, VirtualMachineSpec,
};

use super::super::Failure;
use super::infer::{Asked, is_optional};
use super::volumes::Storage;
use super::{FlagError, cloud_init, data_volumes, metadata, quantity};
use crate::cli::{CreateVm, Elsewhere};

/// Defaults of a VM.
const MEMORY: &str = "512Mi";
/// Validation of an instance expects a UID; any will do.
const SOME_UID: &str = "00000000-0000-0000-0000-000000000000";

#[derive(Debug, thiserror::Error)]
#[error("the virtual machine is invalid: {0}")]
struct Refused(String);

/// A VirtualMachine of these flags.
pub(super) fn vm(args: &CreateVm, namespace: Option<&str>) -> Result<VirtualMachine, Failure> {
    available(&args.elsewhere)?;
    let metadata = metadata(args.name.as_deref(), "vm", namespace);
    let mut spec = VirtualMachineInstanceSpec {
        termination_grace_period_seconds: Some(args.termination_grace_period),
        ..VirtualMachineInstanceSpec::default()
    };
    let mut storage = Storage::of(&metadata.name, &args.volumes)?;
    let data_volume_templates = data_volumes::add(&mut storage, &metadata.name, &args.filled)?;
    if let Some(volume) = cloud_init::volume(&args.cloud_init)? {
        storage.add("cloud-init", volume, None)?;
    }
    let kinds = ["VirtualMachineInstancetype", "VirtualMachineClusterInstancetype"];
    let instancetype = match matcher("instancetype", args.instancetype.as_deref(), kinds)? {
        None if args.memory.is_some() => None,
        None => Asked::instancetype(&args.infer).of(&storage)?,
        named => named,
    };
    let kinds = ["VirtualMachinePreference", "VirtualMachineClusterPreference"];
    let preference = match matcher("preference", args.preference.as_deref(), kinds)? {
        None => Asked::preference(&args.infer).of(&storage)?,
        named => named,
    };
    let chosen = |matcher: &Option<Matcher>| matcher.as_ref().is_some_and(|matcher| !is_optional(matcher));
    if !chosen(&instancetype) {
        let guest = Some(quantity("memory", args.memory.as_deref().unwrap_or(MEMORY))?);
        spec.domain.memory = Some(Box::new(Memory { guest, ..Memory::default() }));
    }
    spec.volumes = storage.volumes;
    spec.domain.devices.disks = storage.disks;
    if !chosen(&instancetype) && !chosen(&preference) {
        validate(&metadata, &spec)?;
    }
    let template =
        VirtualMachineInstanceTemplateSpec { spec, ..VirtualMachineInstanceTemplateSpec::default() };
    let spec = VirtualMachineSpec {
        run_strategy: Some(args.run_strategy.clone()),
        instancetype,
        preference,
        template: Some(template),
        data_volume_templates,
        ..VirtualMachineSpec::default()
    };
    let (api_version, kind) = (API_VERSION.to_owned(), VM_KIND.to_owned());
    Ok(VirtualMachine { api_version, kind, metadata, spec, ..VirtualMachine::default() })
}

/// Rejects unsupported flags.
fn available(args: &Elsewhere) -> Result<(), FlagError> {
    let credentials = "are not put into a running guest here: use --user, --password-file and --ssh-key";
    let table = [
        ("access-cred", !args.access_cred.is_empty(), format!("credentials {credentials}")),
        ("ga-manage-ssh", args.ga_manage_ssh, format!("keys {credentials}")),
    ];
    match table.into_iter().find(|(_, given, _)| *given) {
        Some((flag, _, message)) => Err(FlagError::new(flag, message)),
        None => Ok(()),
    }
}

/// `NAME` or `KIND/NAME`.
fn matcher(flag: &'static str, text: Option<&str>, kinds: [&str; 2]) -> Result<Option<Matcher>, FlagError> {
    let Some(text) = text else { return Ok(None) };
    let (kind, name) = match text.split_once('/') {
        None => ("", text),
        Some((word, name)) => {
            let kind = kinds.iter().find(|kind| kind.eq_ignore_ascii_case(word)).copied();
            let wrong = || FlagError::new(flag, format!("{word:?} is neither {} nor {}", kinds[0], kinds[1]));
            (kind.ok_or_else(wrong)?, name)
        }
    };
    if name.is_empty() || name.contains('/') {
        return Err(FlagError::new(flag, format!("{text:?} is neither NAME nor KIND/NAME")));
    }
    Ok(Some(Matcher { kind: kind.to_owned(), name: name.to_owned(), ..Matcher::default() }))
}

/// The validation errors of its instance.
fn validate(metadata: &ObjectMeta, spec: &VirtualMachineInstanceSpec) -> Result<(), Refused> {
    let vmi = VirtualMachineInstance {
        api_version: API_VERSION.to_owned(),
        kind: VMI_KIND.to_owned(),
        metadata: ObjectMeta {
            namespace: if metadata.namespace.is_empty() { "default" } else { &metadata.namespace }.to_owned(),
            uid: SOME_UID.to_owned(),
            ..metadata.clone()
        },
        spec: spec.clone(),
        ..VirtualMachineInstance::default()
    };
    Vm::from_request(&vmi).map(drop).map_err(|report| Refused(report.to_string()))
}
