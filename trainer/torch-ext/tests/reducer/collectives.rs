//! Ranks together compute what one computes alone, and its gradients.

#![allow(clippy::float_cmp, reason = "small whole numbers are exact")]

use tch::{Kind, Tensor};
use torch_ext::Collectives;

use crate::ranks::{ReportOver, Worker, on_ranks};

fn collectives(rank: &Worker) -> Collectives {
    Collectives::new(
        &rank.model,
        &rank.model_control,
        &rank.recorder(ReportOver::Control),
    )
    .expect("collectives")
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    Vec::try_from(tensor.flatten(0, -1).to_kind(Kind::Double)).expect("numbers")
}

#[test]
fn each_rank_gets_a_part_of_every_other_and_gradients_go_the_way_back() {
    for ranks in 1..=4 {
        on_ranks(ranks, |rank| {
            let own = f64::from(rank.rank);
            let collectives = collectives(&rank);
            // Part i of rank r is [10 r + i], and not contiguous.
            let parts = Tensor::arange(i64::from(rank.world_size), (Kind::Float, rank.device)) + 10.0 * own;
            let parts = Tensor::stack(&[&parts, &parts], 0).set_requires_grad(true);
            let received = collectives.all_to_all(&parts.transpose(0, 1)).expect("exchanges");
            let expected: Vec<f64> = (0..rank.world_size)
                .flat_map(|from| [10.0 * f64::from(from) + own; 2])
                .collect();
            assert_eq!(numbers(&received), expected);
            // Gradients of parts are the weights of the receiving rank.
            ((received * (own + 1.0)).sum(Kind::Float)).backward();
            let of_receivers: Vec<f64> = (0..rank.world_size).map(|to| f64::from(to) + 1.0).collect();
            assert_eq!(
                numbers(&parts.grad()),
                [of_receivers.clone(), of_receivers].concat()
            );
        });
    }
}

#[test]
fn a_sum_that_all_ranks_go_on_with_alike_has_the_gradient_of_all_their_losses() {
    on_ranks(3, |rank| {
        let collectives = collectives(&rank);
        let own = (Tensor::ones([2], (Kind::Float, rank.device)) * f64::from(rank.rank + 1))
            .set_requires_grad(true);
        let sum = collectives.sum_for_all(&own).expect("adds up");
        assert_eq!(numbers(&sum), [6.0, 6.0]);
        // The loss of each rank is the square of the sum: 3 x 2 x 6.
        sum.square().sum(Kind::Float).backward();
        assert_eq!(numbers(&own.grad()), [36.0, 36.0]);
        assert_eq!(
            numbers(&own),
            [f64::from(rank.rank + 1); 2],
            "the own values stay"
        );
    });
}

#[test]
fn parts_of_a_layer_and_their_sum_have_the_gradients_of_the_whole_layer() {
    on_ranks(3, |rank| {
        let collectives = collectives(&rank);
        // The whole layer multiplies by 1 + 2 + 3.
        let part = Tensor::from_slice(&[rank.rank as f32 + 1.0])
            .to_device(rank.device)
            .set_requires_grad(true);
        let input = Tensor::from_slice(&[2.0_f32])
            .to_device(rank.device)
            .set_requires_grad(true);
        let used = collectives.used_in_parts(&input).expect("passes on");
        let output = collectives.sum_of_parts(&(used * &part)).expect("adds up");
        assert_eq!(numbers(&output), [12.0]);
        output.square().sum(Kind::Float).backward();
        // 2 x 12 x 6 on every rank, and 2 x 12 x 2 for each part.
        assert_eq!(numbers(&input.grad()), [144.0]);
        assert_eq!(numbers(&part.grad()), [48.0]);
    });
}
