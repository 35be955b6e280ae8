use super::*;

/// A node by name, in a block and a rack.
fn cluster(nodes: &[(&str, &str, &str)]) -> Vec<(Arc<str>, BTreeMap<String, String>)> {
    nodes
        .iter()
        .map(|(name, block, rack)| {
            let labels = [("block", block), ("rack", rack)]
                .into_iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(key, value)| (key.to_owned(), (*value).to_owned()));
            ((*name).into(), labels.collect())
        })
        .collect()
}

const KEYS: [Key<'static>; 2] = [Key::Label("block"), Key::Label("rack")];

fn chosen(nodes: &[(&str, &str, &str)], count: usize, required: Option<&str>) -> Option<Vec<String>> {
    chosen_together(nodes, (count, 1), required)
}

fn chosen_together(
    nodes: &[(&str, &str, &str)],
    (count, together): (usize, usize),
    required: Option<&str>,
) -> Option<Vec<String>> {
    let group = GpuGroup::default();
    let nodes = cluster(nodes);
    let fits: Vec<Fit<'_>> = nodes
        .iter()
        .map(|(name, labels)| Fit {
            free: 1,
            name,
            group: &group,
            labels,
        })
        .collect();
    let chosen = choose(&fits, count, together, required, &KEYS)?;
    Some(chosen.iter().map(|fit| fit.name.to_string()).collect())
}

#[test]
fn a_gang_that_fits_one_rack_gets_the_tightest() {
    let nodes = [
        ("a", "x", "1"),
        ("b", "x", "1"),
        ("c", "x", "1"),
        ("d", "x", "2"),
        ("e", "x", "2"),
        ("f", "y", "3"),
    ];
    assert_eq!(chosen(&nodes, 2, None).expect("fits"), ["d", "e"]);
    assert_eq!(chosen(&nodes, 3, None).expect("fits"), ["a", "b", "c"]);
    assert_eq!(
        chosen(&nodes, 1, None).expect("fits"),
        ["f"],
        "what is left over elsewhere stays whole"
    );
}

#[test]
fn a_gang_larger_than_a_rack_stays_in_one_block_and_in_few_racks() {
    let nodes = [
        ("a", "x", "1"),
        ("b", "x", "2"),
        ("c", "x", "3"),
        ("d", "y", "4"),
        ("e", "y", "4"),
        ("f", "y", "5"),
        ("g", "y", "6"),
    ];
    // Block x would leave fewer nodes over, but needs one more rack.
    assert_eq!(chosen(&nodes, 3, None).expect("fits"), ["d", "e", "f"]);
}

#[test]
fn a_gang_larger_than_a_block_takes_whole_ones_first_and_numbers_ranks_along_them() {
    let nodes = [
        ("a", "y", "1"),
        ("b", "x", "2"),
        ("c", "y", "3"),
        ("d", "x", "2"),
        ("e", "z", "4"),
        ("f", "y", "1"),
    ];
    // The whole largest block, and for the rest the block without leftover nodes.
    assert_eq!(chosen(&nodes, 4, None).expect("fits"), ["a", "f", "c", "e"]);
}

#[test]
fn nodes_without_a_label_are_a_last_resort_for_a_preference_and_none_for_a_requirement() {
    let nodes = [("a", "", ""), ("b", "", ""), ("c", "x", "1")];
    assert_eq!(chosen(&nodes, 1, None).expect("fits"), ["c"]);
    assert_eq!(chosen(&nodes, 3, None).expect("fits"), ["c", "a", "b"]);
    assert_eq!(chosen(&nodes, 1, Some("block")).expect("fits"), ["c"]);
    assert_eq!(chosen(&nodes, 2, Some("block")), None);
    assert_eq!(chosen(&nodes, 4, None), None);
}

#[test]
fn nodes_that_compute_a_model_together_are_in_one_rack_where_they_can_be() {
    let nodes = [
        ("a", "x", "1"),
        ("b", "x", "1"),
        ("c", "x", "1"),
        ("d", "x", "2"),
        ("e", "x", "2"),
        ("f", "x", "2"),
    ];
    let choose = |count, together| chosen_together(&nodes, (count, together), None).expect("fits");
    assert_eq!(choose(4, 1), ["a", "b", "c", "d"]);
    assert_eq!(choose(4, 2), ["a", "b", "d", "e"]);
    // The last two can only be separate.
    assert_eq!(choose(6, 2), ["a", "b", "c", "d", "e", "f"]);
    assert_eq!(choose(6, 3), ["a", "b", "c", "d", "e", "f"]);
    // Three only fit in one rack each; four fit nowhere.
    assert_eq!(choose(3, 3), ["a", "b", "c"]);
    assert_eq!(choose(4, 4), ["a", "b", "c", "d"]);
    let blocks = [
        ("a", "x", ""),
        ("b", "x", ""),
        ("c", "x", ""),
        ("d", "y", ""),
        ("e", "y", ""),
        ("f", "z", ""),
    ];
    let chosen = chosen_together(&blocks, (4, 2), None).expect("fits");
    assert_eq!(chosen, ["a", "b", "d", "e"]);
}
