//! `virtctl adm` and `permitted-devices`: settings of the KubeVirt object.

use serde_json::{Map, Value, json};

use super::Failure;
use crate::cli::{Adm, AdmCommand, LogVerbosity, Server};
use crate::client::{Client, ClientError};

/// The verbosity of components that have no other.
const DEFAULT: u64 = 2;
const HIGHEST: u64 = 9;
const VERBOSITY: &str = "/spec/configuration/developerConfiguration/logVerbosity";
/// The components, and their fields.
const COMPONENTS: [(&str, &str); 5] = [
    ("virt-api", "virtAPI"),
    ("virt-controller", "virtController"),
    ("virt-handler", "virtHandler"),
    ("virt-launcher", "virtLauncher"),
    ("virt-operator", "virtOperator"),
];

#[derive(Debug, thiserror::Error)]
enum AdminError {
    #[error("No KubeVirt resource in {0:?} namespace")]
    NoneHere(String),
    #[error("could not list KubeVirt CRs across all namespaces")]
    List(#[source] ClientError),
    #[error("could not detect a KubeVirt installation")]
    NoInstallation,
    #[error("invalid kubevirt installation, more than one KubeVirt resource found")]
    Several,
    #[error("no flag specified - expecting at least one flag")]
    NoFlag,
    #[error("only show or set is allowed")]
    Both,
    #[error("{0}: log verbosity must be 0-{HIGHEST}")]
    Level(String),
}

/// Prints the permitted devices.
pub(crate) async fn permitted_devices(server: &Server) -> Result<(), Failure> {
    let client = Client::new(server).await?;
    let mut list = client.get(&client.kubevirt("kubevirts")?).await?;
    let kubevirt = list["items"].get_mut(0).map(Value::take);
    let kubevirt = kubevirt.ok_or_else(|| AdminError::NoneHere(client.namespace().to_owned()))?;
    let permitted = &kubevirt["spec"]["configuration"]["permittedHostDevices"];
    let names = |kinds: &[&str]| {
        let devices = kinds.iter().filter_map(|kind| permitted[*kind].as_array()).flatten();
        let names: Vec<&str> = devices.filter_map(|device| device["resourceName"].as_str()).collect();
        names.join(", ")
    };
    let (host, gpus) = (names(&["pciHostDevices", "usb"]), names(&["mediatedDevices"]));
    println!("Permitted Devices: \nHost Devices: \n{host} \nGPU Devices: \n{gpus}");
    Ok(())
}

/// What is requested of the log verbosity.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    /// Of these fields.
    Show(Vec<&'static str>),
    /// What each field becomes; null is the default.
    Set { fields: Map<String, Value>, reset: bool, sets: bool },
}

impl Request {
    fn new(args: &LogVerbosity) -> Result<Self, AdminError> {
        let LogVerbosity {
            virt_api,
            virt_controller,
            virt_handler,
            virt_launcher,
            virt_operator,
            all,
            reset,
        } = args;
        let given = [virt_api, virt_controller, virt_handler, virt_launcher, virt_operator];
        let flags = COMPONENTS
            .iter()
            .zip(given)
            .filter_map(|((name, field), given)| Some((*name, *field, given.as_deref().or(all.as_deref())?)));
        let (mut shown, mut fields) = (Vec::new(), Map::new());
        if reset.is_some() {
            fields.extend(COMPONENTS.map(|(_, field)| (field.to_owned(), Value::Null)));
        }
        let mut sets = false;
        for (name, field, level) in flags {
            if level == "show" {
                shown.push(field);
                continue;
            }
            let level = level.parse().ok().filter(|level: &u64| *level <= HIGHEST);
            let level = level.ok_or_else(|| AdminError::Level(name.to_owned()))?;
            fields.insert(field.to_owned(), json!(level));
            sets = true;
        }
        match (shown.is_empty(), fields.is_empty()) {
            (true, true) => Err(AdminError::NoFlag),
            (false, false) => Err(AdminError::Both),
            (false, true) => Ok(Self::Show(shown)),
            (true, false) => Ok(Self::Set { fields, reset: reset.is_some(), sets }),
        }
    }
}

/// Shows or sets settings.
pub(crate) async fn adm(server: &Server, args: &Adm) -> Result<(), Failure> {
    let AdmCommand::LogVerbosity(args) = &args.command;
    let request = Request::new(args)?;
    let client = Client::new(server).await?;
    let list = client.get("/apis/kubevirt.io/v1/kubevirts").await.map_err(AdminError::List)?;
    let kubevirt = match list["items"].as_array().map(Vec::as_slice) {
        None | Some([]) => return Err(AdminError::NoInstallation.into()),
        Some([one]) => one,
        Some(_) => return Err(AdminError::Several.into()),
    };
    match request {
        Request::Show(shown) => {
            let known = kubevirt.pointer(VERBOSITY).unwrap_or(&Value::Null);
            for (name, field) in COMPONENTS.iter().filter(|(_, field)| shown.contains(field)) {
                println!("{name} = {}", known[*field].as_u64().unwrap_or(DEFAULT));
            }
        }
        Request::Set { fields, reset, sets } => {
            let own = |field: &str| kubevirt["metadata"][field].as_str().unwrap_or_default().to_owned();
            let client = client.within(Some(&own("namespace")));
            let patch =
                json!({"spec": {"configuration": {"developerConfiguration": {"logVerbosity": fields}}}});
            client.merge(&client.kubevirt(&format!("kubevirts/{}", own("name")))?, &patch).await?;
            if reset {
                println!("successfully reset the verbosity of all KubeVirt components to default (2)");
            }
            if sets {
                println!("successfully set the verbosity of the KubeVirt component(s)");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(level: &str) -> Option<String> {
        Some(level.to_owned())
    }

    #[test]
    fn levels_are_shown_or_set() {
        let request = |args: LogVerbosity| Request::new(&args).map_err(|error| error.to_string());
        let none = LogVerbosity::default;
        assert!(request(none()).unwrap_err().contains("no flag"));
        let shown = request(LogVerbosity { virt_handler: given("show"), ..none() });
        assert_eq!(shown, Ok(Request::Show(vec!["virtHandler"])));
        let both = LogVerbosity { virt_handler: given("show"), virt_api: given("3"), ..none() };
        assert_eq!(request(both), Err("only show or set is allowed".to_owned()));
        let high = LogVerbosity { virt_api: given("10"), ..none() };
        assert_eq!(request(high), Err("virt-api: log verbosity must be 0-9".to_owned()));
        let Ok(Request::Set { fields, .. }) =
            request(LogVerbosity { all: given("3"), virt_handler: given("7"), ..none() })
        else {
            panic!("it is set");
        };
        let expected = json!({"virtAPI": 3, "virtController": 3, "virtHandler": 7, "virtLauncher": 3, "virtOperator": 3});
        assert_eq!(Value::Object(fields), expected);
        let Ok(Request::Set { fields, reset: true, sets: true }) =
            request(LogVerbosity { reset: given("all"), virt_api: given("5"), ..none() })
        else {
            panic!("it is reset");
        };
        assert_eq!((&fields["virtAPI"], &fields["virtHandler"]), (&json!(5), &Value::Null));
    }
}
