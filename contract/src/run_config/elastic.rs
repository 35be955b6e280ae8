//! The same run on another number of nodes.

use super::RunConfig;

/// Maximum numbers of micro-batches to try.
const TRIED: usize = 1024;

impl RunConfig {
    /// The same run on `nodes` nodes, with the same global batch: with as few micro-batches as
    /// possible, none larger than before, to fit in memory. `None` if the images cannot be shared
    /// evenly, or need more than twice the minimum of micro-batches.
    pub fn on_nodes(&self, nodes: u32) -> Option<Self> {
        let micro_batch_size = u64::from(self.training.micro_batch_size);
        let on_one_node =
            micro_batch_size * u64::from(self.training.gradient_accumulation_steps) * u64::from(self.nodes);
        let has_whole_replicas =
            (nodes * self.ranks_per_node).is_multiple_of(self.parallelism.ranks_per_replica());
        if nodes == 0
            || micro_batch_size == 0
            || !has_whole_replicas
            || !on_one_node.is_multiple_of(nodes.into())
        {
            return None;
        }
        let images = on_one_node / u64::from(nodes);
        let least = images.div_ceil(micro_batch_size);
        let steps = (least..=2 * least).take(TRIED).find(|steps| {
            let is_whole = *steps > 0 && images.is_multiple_of(*steps);
            is_whole && (!self.data.augmentation.mixes() || (images / steps).is_multiple_of(2))
        })?;
        let mut config = self.clone();
        config.nodes = nodes;
        config.training.micro_batch_size = u32::try_from(images / steps).ok()?;
        config.training.gradient_accumulation_steps = u32::try_from(steps).ok()?;
        Some(config)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::config;

    /// Micro-batch size and number of micro-batches after a change of nodes.
    fn share(micro: u32, steps: u32, nodes: u32, other: u32, mixes: bool) -> Option<(u32, u32)> {
        share_of_replicas(1, (micro, steps), nodes, other, mixes)
    }

    fn share_of_replicas(
        sequence: u32,
        (micro, steps): (u32, u32),
        nodes: u32,
        other: u32,
        mixes: bool,
    ) -> Option<(u32, u32)> {
        let mut config = config();
        config.ranks_per_node = 1;
        config.parallelism.sequence = sequence;
        config.nodes = nodes;
        config.training.micro_batch_size = micro;
        config.training.gradient_accumulation_steps = steps;
        config.data.augmentation.mixup = if mixes { 0.2 } else { 0.0 };
        let changed = config.on_nodes(other)?;
        assert_eq!(changed.global_batch_size(), config.global_batch_size());
        assert!(changed.training.micro_batch_size <= micro);
        Some((
            changed.training.micro_batch_size,
            changed.training.gradient_accumulation_steps,
        ))
    }

    /// Invariant G10.
    #[test]
    fn the_global_batch_is_kept_and_micro_batches_never_grow() {
        for (micro, steps, nodes, other, expected) in [
            (32, 1, 4, 4, Some((32, 1))),
            (32, 1, 4, 2, Some((32, 2))),
            (32, 1, 4, 1, Some((32, 4))),
            (32, 1, 4, 8, Some((16, 1))),
            (32, 4, 2, 8, Some((32, 1))),
            (24, 1, 4, 3, Some((16, 2))),
            (7, 3, 5, 5, Some((7, 3))),
            // Three does not divide 128 images, nor two one image.
            (32, 1, 4, 3, None),
            (1, 1, 1, 2, None),
            // 47 is prime: single images would need 47 times as many micro-batches.
            (40, 47, 2, 80, None),
            (32, 1, 4, 0, None),
        ] {
            let found = share(micro, steps, nodes, other, false);
            assert_eq!(found, expected, "{micro} x {steps} on {nodes}, then {other}");
        }
    }

    #[test]
    fn ranks_that_compute_a_model_together_stay_together() {
        for (nodes, other, expected) in [
            (4, 2, Some((32, 2))),
            (4, 8, Some((16, 1))),
            // Two ranks per replica: three nodes have one and a half.
            (4, 3, None),
            (4, 1, None),
        ] {
            let found = share_of_replicas(2, (32, 1), nodes, other, false);
            assert_eq!(found, expected, "{nodes}, then {other}");
        }
    }

    #[test]
    fn mixed_images_stay_in_pairs() {
        assert_eq!(share(6, 1, 2, 4, false), Some((3, 1)));
        assert_eq!(share(6, 1, 2, 4, true), None);
        assert_eq!(share(6, 1, 4, 3, true), Some((4, 2)));
    }
}
