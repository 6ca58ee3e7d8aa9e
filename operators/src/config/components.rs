//! Settings of the components themselves, which they follow without a restart.

use vireo_api::spec::{Cause, Field};
use vireo_api::v1::{DeveloperConfiguration, KubeVirtConfiguration};
use vireo_client::rate_limit::RateLimit;
use vireo_client::tls::TlsSettings;

use super::{ClusterConfig, Findings};

/// The highest verbosity of logs.
pub(super) const LOUDEST: u32 = 9;
/// The roles of users do not become part of Kubernetes' roles.
pub const MANUAL: &str = "Manual";
const AGGREGATION: [&str; 2] = ["AggregateToDefault", MANUAL];

/// Settings of the components.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Components {
    /// What their servers accept.
    pub tls: TlsSettings,
    /// How many requests virt-api sends.
    pub api: Option<RateLimit>,
    /// How many requests its webhooks send.
    pub webhook: Option<RateLimit>,
    /// How many requests virt-controller sends.
    pub controller: Option<RateLimit>,
    /// The verbosity of virt-operator's log.
    pub operator_verbosity: Option<u32>,
}

impl ClusterConfig {
    pub(super) fn read_components(
        &mut self,
        given: &KubeVirtConfiguration,
        at: &Field,
        found: &mut Findings,
    ) {
        if let Some(tls) = &given.tls_configuration {
            match TlsSettings::read(tls) {
                Ok(settings) => self.components.tls = settings,
                Err((field, why)) => found.add(Cause::Invalid, &at.at("tlsConfiguration").at(field), why),
            }
        }
        // Node agents read theirs themselves.
        let mut handler = None;
        for (name, given, limit) in [
            ("apiConfiguration", &given.api_configuration, &mut self.components.api),
            ("webhookConfiguration", &given.webhook_configuration, &mut self.components.webhook),
            ("controllerConfiguration", &given.controller_configuration, &mut self.components.controller),
            ("handlerConfiguration", &given.handler_configuration, &mut handler),
        ] {
            match RateLimit::read(given.as_ref()) {
                Ok(read) => *limit = read,
                Err((field, why)) => found.add(Cause::Invalid, &at.at(name).at(field), why),
            }
        }
        found.one_of(&at.at("roleAggregationStrategy"), &given.role_aggregation_strategy, &AGGREGATION);
    }

    pub(super) fn read_verbosity(
        &mut self,
        given: &DeveloperConfiguration,
        at: &Field,
        found: &mut Findings,
    ) {
        let Some(verbosity) = &given.log_verbosity else { return };
        let at = at.at("logVerbosity");
        let components = [
            ("virtAPI", verbosity.virt_api),
            ("virtController", verbosity.virt_controller),
            ("virtHandler", verbosity.virt_handler),
            ("virtLauncher", verbosity.virt_launcher),
            ("virtOperator", verbosity.virt_operator),
        ];
        let components = components.into_iter().filter_map(|(name, level)| Some((at.at(name), level?)));
        let nodes =
            verbosity.node_verbosity.iter().map(|(node, level)| (at.at("nodeVerbosity").at(node), *level));
        for (field, level) in components.chain(nodes).filter(|(_, level)| *level > LOUDEST) {
            let message = format!("Invalid value: {level}: must be less than or equal to {LOUDEST}");
            found.add(Cause::Invalid, &field, message);
        }
        let valid = |level: &u32| *level <= LOUDEST;
        self.launcher_verbosity = verbosity.virt_launcher.filter(valid);
        self.components.operator_verbosity = verbosity.virt_operator.filter(valid);
    }
}
