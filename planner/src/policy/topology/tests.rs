use super::*;

/// The chosen nodes of a cluster, by rank. A node has a name, and may have a block and a rack.
fn chosen(cluster: &str, count: usize, together: usize, required: Option<&str>) -> Option<String> {
    let node = |node: &str| -> (Arc<str>, BTreeMap<String, String>) {
        let mut words = node.split_whitespace();
        let name = words.next().expect("a name").into();
        let labels = ["block", "rack"].map(String::from).into_iter();
        (name, labels.zip(words.map(String::from)).collect())
    };
    let nodes: Vec<_> = cluster.split(',').map(node).collect();
    let group = GpuGroup::default();
    let fit = |(name, labels)| Fit {
        free: 1,
        name,
        group: &group,
        labels,
    };
    let fits: Vec<Fit<'_>> = nodes.iter().map(|(name, labels)| fit((name, labels))).collect();
    let keys = [Key::Label("block"), Key::Label("rack")];
    let names = |fits: Vec<Fit<'_>>| fits.iter().map(|fit| &**fit.name).collect::<Vec<_>>().join(" ");
    choose(&fits, count, together, required, &keys).map(names)
}

#[test]
fn a_gang_is_close_together_and_leaves_whole_domains_to_others() {
    let racks = "a x 1, b x 1, c x 1, d x 2, e x 2, f y 3";
    let blocks = "a x 1, b x 2, c x 3, d y 4, e y 4, f y 5, g y 6";
    let spread = "a y 1, b x 2, c y 3, d x 2, e z 4, f y 1";
    for (cluster, count, expected, why) in [
        (racks, 2, "d e", "the tightest rack"),
        (racks, 3, "a b c", "the tightest rack"),
        (racks, 1, "f", "leftovers elsewhere stay whole"),
        (blocks, 3, "d e f", "the fewest racks, not leftovers"),
        (spread, 4, "a f c e", "a whole block, then no leftovers"),
    ] {
        let chosen = chosen(cluster, count, 1, None);
        assert_eq!(chosen.as_deref(), Some(expected), "{why}");
    }
}

#[test]
fn nodes_without_a_label_are_a_last_resort_for_a_preference_and_none_for_a_requirement() {
    for (count, required, expected) in [
        (1, None, Some("c")),
        (3, None, Some("c a b")),
        (4, None, None),
        (1, Some("block"), Some("c")),
        (2, Some("block"), None),
    ] {
        let chosen = chosen("a, b, c x 1", count, 1, required);
        assert_eq!(chosen.as_deref(), expected, "{count}");
    }
}

#[test]
fn nodes_that_compute_a_model_together_are_in_one_domain_where_they_can_be() {
    let racks = "a x 1, b x 1, c x 1, d x 2, e x 2, f x 2";
    for (cluster, count, together, expected) in [
        (racks, 4, 1, "a b c d"),
        (racks, 4, 2, "a b d e"),
        // The last two can only be separate.
        (racks, 6, 2, "a b c d e f"),
        (racks, 6, 3, "a b c d e f"),
        // Three only fit in one rack each; four fit nowhere.
        (racks, 3, 3, "a b c"),
        (racks, 4, 4, "a b c d"),
        ("a x, b x, c x, d y, e y, f z", 4, 2, "a b d e"),
    ] {
        let chosen = chosen(cluster, count, together, None);
        assert_eq!(chosen.as_deref(), Some(expected), "{count} by {together}");
    }
}

#[test]
fn a_status_lists_the_first_domains_only() {
    let label = |node: usize| BTreeMap::from([("rack".to_owned(), format!("rack-{:02}", node / 2))]);
    let nodes: Vec<(Arc<str>, _)> = (0..80).map(|node| ("node".into(), label(node))).collect();
    let group = GpuGroup::default();
    let fit = |(name, labels)| Fit {
        free: 1,
        name,
        group: &group,
        labels,
    };
    let fits: Vec<Fit<'_>> = nodes.iter().map(|(name, labels)| fit((name, labels))).collect();
    let domains = |nodes: usize| {
        spread(&fits[..nodes], ["rack"].into_iter())
            .swap_remove(0)
            .domains
    };
    assert_eq!(domains(3), ["rack-00", "rack-01"]);
    assert_eq!((domains(80).len(), &*domains(80)[31]), (32, "rack-31"));
}
