//! Describes a gang of different GPUs.

use contract::Balance;
use contract::gpu::peak_flops;
use crds::status::MixedGroup;

/// Describes the nodes of each product, and what the mix means for a step.
pub(crate) fn in_words(groups: &[MixedGroup], balance: Balance) -> String {
    let kinds: Vec<String> = groups
        .iter()
        .map(|kind| match kind.group.product.as_str() {
            "" => format!("{} of an unknown product", kind.nodes),
            product => format!("{} of {product}", kind.nodes),
        })
        .collect();
    let kinds = kinds.join(", ");
    let gain = gain(groups).map(|gain| format!("{gain:.1} times as many images/s"));
    let consequence = match (balance, gain) {
        (Balance::Off, None) => "every step waits for the slowest".into(),
        (Balance::Off, Some(gain)) => format!(
            "every step waits for the slowest; by peak FLOPS, training.balance Weighted could reach {gain}"
        ),
        (Balance::Weighted, None) => "each gets images by its speed".into(),
        (Balance::Weighted, Some(gain)) => {
            format!("each gets images by its speed; by peak FLOPS, up to {gain} as with even shares")
        }
    };
    format!("GPUs of several kinds ({kinds}): {consequence}")
}

/// Least gain worth reporting: kinds may only differ in their driver.
const LEAST_GAIN: f64 = 1.05;

/// Speedup of a step over even shares, by the peak FLOPS of all GPUs, the same number on each node.
/// `None` if a GPU is unknown or shared, or all are about equally fast.
fn gain(groups: &[MixedGroup]) -> Option<f64> {
    let (mut count, mut sum, mut least) = (0.0, 0.0, f64::INFINITY);
    for kind in groups {
        let nodes = f64::from(kind.nodes);
        let is_whole = kind.group.replicas.is_none() && kind.group.sharing_strategy.is_none();
        let peak = peak_flops(&kind.group.product).filter(|_| is_whole)?;
        count += nodes;
        sum += nodes * peak;
        least = least.min(peak);
    }
    Some(sum / (count * least)).filter(|gain| *gain >= LEAST_GAIN)
}

#[cfg(test)]
mod tests {
    // As expect-test writes them.
    #![allow(clippy::needless_raw_string_hashes)]

    use crds::status::GpuGroup;
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_mixed_gang_is_told_what_it_gains_where_products_are_known() {
        let (a100, t4) = ("NVIDIA-A100-SXM4-40GB", "Tesla-T4");
        let mut words = String::new();
        // 3 x 312 and 65 in place of 4 x 65.
        for (products, replicas) in [
            ([a100, t4], None),
            ([t4, t4], None),
            ([a100, t4], Some(4)),
            ([a100, ""], None),
        ] {
            let groups = products.map(|product| MixedGroup {
                group: GpuGroup {
                    product: product.into(),
                    replicas,
                    ..GpuGroup::default()
                },
                nodes: if product == a100 { 3 } else { 1 },
            });
            for balance in [Balance::Weighted, Balance::Off] {
                words += &in_words(&groups, balance);
                words.push('\n');
            }
        }
        expect![[r#"
            GPUs of several kinds (3 of NVIDIA-A100-SXM4-40GB, 1 of Tesla-T4): each gets images by its speed; by peak FLOPS, up to 3.9 times as many images/s as with even shares
            GPUs of several kinds (3 of NVIDIA-A100-SXM4-40GB, 1 of Tesla-T4): every step waits for the slowest; by peak FLOPS, training.balance Weighted could reach 3.9 times as many images/s
            GPUs of several kinds (1 of Tesla-T4, 1 of Tesla-T4): each gets images by its speed
            GPUs of several kinds (1 of Tesla-T4, 1 of Tesla-T4): every step waits for the slowest
            GPUs of several kinds (3 of NVIDIA-A100-SXM4-40GB, 1 of Tesla-T4): each gets images by its speed
            GPUs of several kinds (3 of NVIDIA-A100-SXM4-40GB, 1 of Tesla-T4): every step waits for the slowest
            GPUs of several kinds (3 of NVIDIA-A100-SXM4-40GB, 1 of an unknown product): each gets images by its speed
            GPUs of several kinds (3 of NVIDIA-A100-SXM4-40GB, 1 of an unknown product): every step waits for the slowest
        "#]].assert_eq(&words);
    }
}
