//! `spec.elastic`.

use contract::{ConfigError, RunConfig};

use super::count;
use crate::spec;

/// The numbers of nodes that a gang may have, the greatest first.
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
    let mut refuse = |field: &'static str, value: u32, expected: String| {
        errors.push(ConfigError {
            field: field.into(),
            value: value.to_string(),
            expected,
        });
    };
    if least > config.nodes {
        let expected = format!("must be at most workers.nodes, which is {}", config.nodes);
        refuse("elastic.minNodes", least, expected);
    }
    if most < config.nodes {
        let expected = format!("must be at least workers.nodes, which is {}", config.nodes);
        refuse("elastic.maxNodes", most, expected);
    }
    (least..=most)
        .rev()
        .filter(|nodes| config.batch_share(*nodes).is_some())
        .collect()
}
