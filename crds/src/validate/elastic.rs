//! `spec.elastic`.

use contract::{ConfigError, RunConfig};

use super::{count, refuse};
use crate::spec;

/// The allowed numbers of nodes of a gang, largest first.
pub(super) fn sizes(
    elastic: Option<&spec::Elastic>,
    config: &RunConfig,
    errors: &mut Vec<ConfigError>,
) -> Vec<u32> {
    let Some(elastic) = elastic else {
        return vec![config.nodes];
    };
    let least = count(elastic.min_nodes);
    let most = elastic.max_nodes.map_or(config.nodes, count);
    if least > config.nodes {
        let expected = format!("must be at most workers.nodes, which is {}", config.nodes);
        refuse(errors, "elastic.minNodes", least.to_string(), expected);
    }
    if most < config.nodes {
        let expected = format!("must be at least workers.nodes, which is {}", config.nodes);
        refuse(errors, "elastic.maxNodes", most.to_string(), expected);
    }
    let sizes = (least..=most).rev();
    sizes.filter(|nodes| config.on_nodes(*nodes).is_some()).collect()
}
