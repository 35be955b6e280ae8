//! How many images of a step each replica takes with `training.balance: Weighted`.
//!
//! The global batch stays the same; each replica takes as many images as it can process in the time
//! that the others need. All ranks get the compute times of all with each step, so they decide the
//! same without another message. A decision uses the medians of [`WINDOW`] steps; it applies only
//! if the slowest replica then needs [`LEAST_GAIN`] less time. A replica that slows the others down
//! even with the least share gets none. It is tried again once that costs less than about
//! [`TRIAL_COST`] of the time since.

use crate::pass_time::PassTime;

/// Steps between two changes, except for trials.
const WINDOW: usize = 50;
/// Steps that do not measure new shares: the running one, two until ranks have the report of the
/// first with them, and that first one. It allocates memory and restarts reading.
const LAG: u64 = 4;
/// The slowest replica's time with the old shares, divided by that with the new ones.
const LEAST_GAIN: f64 = 1.05;
/// Largest cost of measuring a replica again, as a share of the time since it was measured.
const TRIAL_COST: f64 = 0.01;
/// Cost of reading other images from now on, in steps.
const RESTART: f64 = 1.0;
/// Longest step with a trial, in steps without one: waiting ranks must not count as stuck.
const LONGEST_TRIAL: f64 = 4.0;
/// Shortest time, seconds.
const SHORTEST: f64 = 1e-9;
/// Halvings of an interval until its ends are equal.
const HALVINGS: usize = 64;

/// Time of a step on a replica, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cost {
    /// Per micro-batch, whatever its size.
    fixed: f64,
    /// Per image.
    image: f64,
}

impl Cost {
    /// Fitted to the times of two micro-batches; the first has more images.
    pub(super) fn from_times(times: [(u64, f64); 2]) -> Self {
        let time = PassTime::through(times);
        Self {
            fixed: time.fixed_seconds,
            image: time.image_seconds.max(SHORTEST),
        }
    }

    fn seconds(self, images: u64, largest: u64) -> f64 {
        self.fixed * images.div_ceil(largest) as f64 + self.image * images as f64
    }

    fn scaled(self, factor: f64) -> Self {
        Self {
            fixed: self.fixed * factor,
            image: (self.image * factor).max(SHORTEST),
        }
    }
}

/// How the images of a step can be divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// Images of a step, over all replicas.
    pub(super) total: u64,
    /// The largest micro-batch.
    pub(super) micro_batch: u64,
    /// Images that stay together; shares are multiples of it.
    pub(super) quantum: u64,
}

/// Images of a step, by replica.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Shares(Vec<u64>);

impl Shares {
    /// Equal shares of `total` for `replicas`, which divide it evenly.
    pub(super) fn even(total: u64, replicas: u32) -> Self {
        Self(vec![total / u64::from(replicas); replicas as usize])
    }

    /// The shares with which the slowest replica takes the least time.
    fn fastest(costs: &[Cost], sizes: Sizes) -> Self {
        let within = |seconds: f64| -> Vec<u64> {
            costs
                .iter()
                .map(|cost| most_within(*cost, seconds, sizes))
                .collect()
        };
        let holds = |images: &[u64]| images.iter().sum::<u64>() >= sizes.total;
        let alone = costs
            .iter()
            .map(|cost| cost.seconds(sizes.total, sizes.micro_batch));
        let (mut too_short, mut enough) = (0.0, alone.fold(f64::INFINITY, f64::min));
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(too_short, enough);
            *if holds(&within(middle)) {
                &mut enough
            } else {
                &mut too_short
            } = middle;
        }
        let mut images = within(enough);
        let mut excess = images.iter().sum::<u64>() - sizes.total;
        while excess > 0 {
            let seconds = |replica: &usize| costs[*replica].seconds(images[*replica], sizes.micro_batch);
            let having = (0..images.len()).filter(|replica| images[*replica] > 0);
            let slowest = having.max_by(|one, other| seconds(one).total_cmp(&seconds(other)));
            images[slowest.expect("a replica")] -= sizes.quantum;
            excess -= sizes.quantum;
        }
        Self(images)
    }

    /// These shares, but each of `replicas` takes one `quantum` from the replica with the most.
    fn with_trials(&self, replicas: &[usize], quantum: u64) -> Self {
        let mut images = self.0.clone();
        for replica in replicas {
            *images.iter_mut().max().expect("a replica") -= quantum;
            images[*replica] += quantum;
        }
        Self(images)
    }

    /// Time of the slowest replica, in seconds.
    fn slowest(&self, costs: &[Cost], sizes: Sizes) -> f64 {
        let shares = self.0.iter().zip(costs);
        let times = shares.map(|(images, cost)| cost.seconds(*images, sizes.micro_batch));
        times.max_by(f64::total_cmp).unwrap_or_default()
    }

    pub(super) fn as_slice(&self) -> &[u64] {
        &self.0
    }

    pub(super) fn images(&self, replica: u32) -> u64 {
        self.0[replica as usize]
    }

    /// Images of a step before those of `replica`.
    pub(super) fn before(&self, replica: u32) -> u64 {
        self.0[..replica as usize].iter().sum()
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Replicas without images.
    fn idle(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).filter(|replica| self.0[*replica] == 0)
    }

    /// The fewest micro-batches of at most `largest` images for the share of `replica`.
    pub(super) fn least_micro_batches(&self, replica: u32, largest: u64) -> u64 {
        self.images(replica).div_ceil(largest)
    }

    /// The same for the replica with the most images.
    pub(super) fn most_micro_batches(&self, largest: u64) -> u64 {
        let most = self.0.iter().max().copied().unwrap_or(0);
        most.div_ceil(largest)
    }

    /// The images of `replica` in `count` micro-batches, whose sizes differ by one `quantum` at
    /// most. Some are empty if it has too few.
    pub(super) fn micro_batches(&self, replica: u32, count: u64, quantum: u64) -> Vec<u64> {
        let quanta = self.images(replica) / quantum;
        let before = |index: u64| quanta * index / count * quantum;
        (0..count)
            .map(|index| before(index + 1) - before(index))
            .collect()
    }
}

/// The most images, up to those of a step, that a replica processes within `seconds`.
fn most_within(cost: Cost, seconds: f64, sizes: Sizes) -> u64 {
    let fits = |quanta: u64| cost.seconds(quanta * sizes.quantum, sizes.micro_batch) <= seconds;
    let (mut fitting, mut too_many) = (0, sizes.total / sizes.quantum + 1);
    while fitting + 1 < too_many {
        let middle = u64::midpoint(fitting, too_many);
        *if fits(middle) { &mut fitting } else { &mut too_many } = middle;
    }
    fitting * sizes.quantum
}

impl std::fmt::Display for Shares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let images: Vec<String> = self.0.iter().map(u64::to_string).collect();
        write!(f, "{}", images.join(", "))
    }
}

/// A change of the shares.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ShareChange {
    pub(super) before: Shares,
    /// Expected seconds of the slowest replica: with the old shares, and with the new ones.
    pub(super) seconds: [f64; 2],
}

/// Measures replicas and sets their shares.
#[derive(Debug)]
pub(super) struct Balancer {
    sizes: Sizes,
    shares: Shares,
    /// By replica.
    costs: Vec<Cost>,
    /// The step at which each was measured.
    measured: Vec<u64>,
    /// The step at which the shares were decided.
    since: u64,
    /// Seconds of steps with these shares, by replica.
    window: Vec<Vec<f64>>,
    /// Idle replicas that have images only to be measured; the shares without them.
    trial: Option<(Vec<usize>, Shares)>,
}

impl Balancer {
    /// For replicas of these costs, when training begins after `step`.
    pub(super) fn new(costs: Vec<Cost>, sizes: Sizes, step: u64) -> (Self, Option<ShareChange>) {
        let replicas = u32::try_from(costs.len()).expect("as many as there are ranks");
        let mut balancer = Self {
            sizes,
            shares: Shares::even(sizes.total, replicas),
            measured: vec![step; costs.len()],
            costs,
            since: step,
            window: Vec::new(),
            trial: None,
        };
        let change = balancer.decide(step, LEAST_GAIN);
        (balancer, change)
    }

    pub(super) fn shares(&self) -> &Shares {
        &self.shares
    }

    /// The shares without trials, for work that lasts longer than a trial.
    pub(super) fn lasting_shares(&self) -> &Shares {
        self.trial.as_ref().map_or(&self.shares, |(_, without)| without)
    }

    /// Whether a replica has no images, or only to be measured.
    pub(super) fn is_idle(&self, replica: u32) -> bool {
        self.lasting_shares().images(replica) == 0
    }

    /// Whether replicas have images only to be measured.
    pub(super) fn is_trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Adds the compute seconds of each replica in an earlier step, which all ranks get with
    /// `step`. Returns a change that applies to the step launched next.
    pub(super) fn observe(&mut self, step: u64, seconds: Vec<f64>) -> Option<ShareChange> {
        if step <= self.since + LAG {
            return None;
        }
        self.window.push(seconds);
        // One step is enough to measure the tried replicas, and too little for the others.
        let (measured, least_gain) = match self.trial.take() {
            // No threshold: among many replicas one share is a small gain.
            Some((tried, _)) => (tried, 1.0),
            None if self.window.len() == WINDOW => ((0..self.costs.len()).collect(), LEAST_GAIN),
            None => return None,
        };
        for replica in measured {
            let images = self.shares.0[replica];
            if images > 0 {
                let median = median(self.window.iter().map(|times| times[replica]).collect());
                let expected = self.costs[replica].seconds(images, self.sizes.micro_batch);
                self.costs[replica] = self.costs[replica].scaled(median / expected);
                self.measured[replica] = step;
            }
        }
        self.window.clear();
        self.decide(step, least_gain)
    }

    fn decide(&mut self, step: u64, least_gain: f64) -> Option<ShareChange> {
        let fastest = Shares::fastest(&self.costs, self.sizes);
        let now = self.shares.slowest(&self.costs, self.sizes);
        let then = fastest.slowest(&self.costs, self.sizes);
        let next = if now >= then * least_gain {
            fastest
        } else {
            self.shares.clone()
        };
        let others = next.slowest(&self.costs, self.sizes);
        let due: Vec<usize> = next
            .idle()
            .filter(|replica| self.is_due(*replica, step, others))
            .collect();
        let with_trials = next.with_trials(&due, self.sizes.quantum);
        self.trial = (!due.is_empty()).then_some((due, next));
        (with_trials != self.shares).then(|| {
            self.since = step;
            let seconds = [now, with_trials.slowest(&self.costs, self.sizes)];
            let before = std::mem::replace(&mut self.shares, with_trials);
            ShareChange { before, seconds }
        })
    }

    /// Whether an idle replica may be measured again when a step takes `others` seconds.
    fn is_due(&self, replica: usize, step: u64, others: f64) -> bool {
        let alone = self.costs[replica].seconds(self.sizes.quantum, self.sizes.micro_batch);
        // From the first step with it to the one that runs when the trial ends.
        let cost = (LAG + 1) as f64 * (alone - others).max(0.0) + 2.0 * RESTART * others;
        let since = step - self.measured[replica];
        since > WINDOW as u64 && alone <= LONGEST_TRIAL * others && cost <= TRIAL_COST * others * since as f64
    }
}

/// The median; the lower middle value of an even number.
fn median(mut values: Vec<f64>) -> f64 {
    let middle = (values.len() - 1) / 2;
    *values.select_nth_unstable_by(middle, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(total: u64, quantum: u64) -> Sizes {
        Sizes {
            total,
            micro_batch: 1 << 20,
            quantum,
        }
    }

    /// Costs of replicas that depend on the number of images alone.
    fn costs(seconds: &[f64]) -> Vec<Cost> {
        seconds
            .iter()
            .map(|image| Cost {
                fixed: 0.0,
                image: *image,
            })
            .collect()
    }

    fn fastest(costs: &[Cost], sizes: Sizes) -> Vec<u64> {
        let shares = Shares::fastest(costs, sizes);
        assert_eq!(shares.total(), sizes.total);
        shares.0
    }

    /// Every way to divide `total` images among replicas in groups of `quantum`.
    fn all_shares(total: u64, quantum: u64, replicas: usize) -> Vec<Vec<u64>> {
        if replicas == 1 {
            return vec![vec![total]];
        }
        let first = (0..=total / quantum).map(|quanta| quanta * quantum);
        let with = |first: u64| {
            let rest = all_shares(total - first, quantum, replicas - 1);
            rest.into_iter().map(move |rest| [vec![first], rest].concat())
        };
        first.flat_map(with).collect()
    }

    #[test]
    fn no_other_shares_are_faster() {
        for (fixed, seconds) in [
            (0.0, vec![1.0, 1.0, 1.0]),
            (0.0, vec![1.0, 2.0, 6.0]),
            (0.0, vec![0.3, 0.7, 100.0]),
            (0.0, vec![5.0, 1.1, 1.3, 1.2]),
            (2.5, vec![1.0, 1.2, 3.0]),
            (0.4, vec![1.0, 1.0, 1.1, 9.0]),
        ] {
            let costs: Vec<Cost> = seconds
                .iter()
                .map(|image| Cost { fixed, image: *image })
                .collect();
            for (total, quantum) in [(12, 1), (12, 2), (7, 1), (1, 1)] {
                let sizes = Sizes {
                    micro_batch: 4,
                    ..sizes(total, quantum)
                };
                let found = Shares(fastest(&costs, sizes)).slowest(&costs, sizes);
                let others = all_shares(total, quantum, costs.len());
                let best = others
                    .into_iter()
                    .map(|images| Shares(images).slowest(&costs, sizes));
                let best = best.min_by(f64::total_cmp).expect("some");
                assert!(
                    found <= best + 1e-9,
                    "{costs:?}, {total} in {quantum}s: {found} for {best}"
                );
            }
        }
    }

    #[test]
    fn replicas_take_images_by_their_speed_and_none_where_one_would_hold_up_all() {
        assert_eq!(fastest(&costs(&[1.0, 2.0, 6.0]), sizes(20, 1)), [12, 6, 2]);
        assert_eq!(fastest(&costs(&[1.0, 1.0]), sizes(16, 1)), [8, 8]);
        // The study's mixed cluster: three fast GPUs, one at 0.3 and one at 0.01 of their speed.
        let study = costs(&[1.0, 1.0, 1.0, 1.0 / 0.3, 100.0]);
        assert_eq!(fastest(&study, sizes(80, 2))[4], 0);
        let of_many = fastest(&study, sizes(1000, 2));
        assert!(of_many[4] == 2 && of_many[3] >= 88, "{of_many:?}");
    }

    #[test]
    fn a_second_micro_batch_is_only_taken_where_it_pays() {
        // 64 images take 1 and 1.15; 34 of them take 0.62 of that.
        let costs = [1.0, 1.15].map(|speed| Cost::from_times([(64, speed), (34, 0.62 * speed)]));
        let one = Sizes {
            micro_batch: 64,
            ..sizes(128, 1)
        };
        assert_eq!(fastest(&costs, one), [64, 64]);
        let four = Sizes {
            micro_batch: 16,
            ..sizes(128, 1)
        };
        assert!(fastest(&costs, four)[0] >= 64);
    }

    #[test]
    fn a_cost_is_what_two_sizes_tell_within_reason() {
        let cost = Cost::from_times([(16, 10.0), (2, 3.0)]);
        assert!((cost.seconds(16, 16) - 10.0).abs() < 1e-9 && (cost.seconds(2, 16) - 3.0).abs() < 1e-9);
        assert!((cost.seconds(32, 16) - 20.0).abs() < 1e-9, "two micro-batches");
        // Under noise, an image takes some time, but at most its part.
        for short in [10.0, 12.0, 0.0] {
            let cost = Cost::from_times([(16, 10.0), (2, short)]);
            assert!(
                cost.image >= 0.05 && cost.image <= 0.626 && cost.fixed >= 0.0,
                "{cost:?}"
            );
            assert!((cost.seconds(16, 16) - 10.0).abs() < 1e-9, "{cost:?}");
        }
        let cost = Cost::from_times([(2, 10.0), (2, 11.0)]);
        assert!((cost.image - 5.0).abs() < 1e-9 && cost.fixed.abs() < 1e-9);
    }

    #[test]
    fn a_share_is_put_through_the_model_in_micro_batches_of_like_size() {
        let micro_batches = |images, count, quantum| Shares(vec![images]).micro_batches(0, count, quantum);
        assert_eq!(micro_batches(16, 1, 1), [16]);
        assert_eq!(micro_batches(17, 2, 1), [8, 9]);
        assert_eq!(micro_batches(50, 4, 1), [12, 13, 12, 13]);
        assert_eq!(micro_batches(50, 4, 2), [12, 12, 12, 14]);
        assert_eq!(micro_batches(2, 3, 1), [0, 1, 1]);
        assert_eq!(micro_batches(0, 1, 1), [0]);
        let shares = Shares(vec![17, 64, 0]);
        assert_eq!(
            (shares.most_micro_batches(16), shares.least_micro_batches(0, 16)),
            (4, 2)
        );
        let even = Shares::even(96, 4);
        assert_eq!((even.images(3), even.before(3), even.total()), (24, 72, 96));
        assert_eq!(
            even.micro_batches(3, even.least_micro_batches(3, 8), 1),
            [8, 8, 8]
        );
        assert_eq!(even.to_string(), "24, 24, 24, 24");
    }

    /// Runs steps that take times by `costs` until shares change. Returns that step.
    fn until_change(balancer: &mut Balancer, step: &mut u64, costs: &[Cost]) -> Option<(u64, ShareChange)> {
        for _ in 0..10_000 {
            *step += 1;
            let shares = balancer.shares().clone();
            let times = (0..)
                .zip(costs)
                .map(|(replica, cost)| cost.seconds(shares.images(replica), balancer.sizes.micro_batch));
            let times = times.collect();
            if let Some(change) = balancer.observe(*step, times) {
                return Some((*step, change));
            }
        }
        None
    }

    /// Seconds of the slowest replica, before and after.
    fn in_seconds(change: &ShareChange) -> String {
        let [was, is] = change.seconds;
        format!("{was:.0}, {is:.0}")
    }

    #[test]
    fn shares_change_only_for_a_gain_and_not_often() {
        let (mut balancer, change) = Balancer::new(costs(&[1.0, 1.04]), sizes(100, 1), 7);
        assert_eq!((change, balancer.shares().to_string()), (None, "50, 50".into()));
        let mut step = 7;
        assert_eq!(until_change(&mut balancer, &mut step, &costs(&[1.0, 1.09])), None);
        let since = step;
        let (step, change) = until_change(&mut balancer, &mut step, &costs(&[1.0, 3.0])).expect("it pays");
        assert!(step >= since + 25, "a window holds more new times than old ones");
        assert_eq!(change.before.to_string(), "50, 50");
        assert_eq!(balancer.shares().to_string(), "75, 25");
        assert_eq!(in_seconds(&change), "150, 75");
        let (mut again, since) = (step, step);
        let (step, _) = until_change(&mut balancer, &mut again, &costs(&[1.0, 1.0])).expect("it pays");
        assert_eq!(step, since + LAG + WINDOW as u64);
    }

    #[test]
    fn steps_with_other_shares_and_single_slow_ones_tell_nothing() {
        let (mut balancer, _) = Balancer::new(costs(&[1.0, 3.0]), sizes(100, 1), 0);
        assert_eq!(balancer.shares().to_string(), "75, 25");
        // Times of earlier steps, in which the second replica took a multiple.
        for step in 1..=LAG {
            assert_eq!(balancer.observe(step, vec![50.0, 1500.0]), None);
        }
        for step in 0..WINDOW as u64 {
            let pause = if step % 5 == 0 { 600.0 } else { 75.0 };
            assert_eq!(balancer.observe(LAG + 1 + step, vec![pause, 75.0]), None);
        }
    }

    #[test]
    fn a_replica_that_was_left_idle_is_tried_again_at_little_cost() {
        let mut seconds = costs(&[1.0, 1.0, 100.0]);
        let (mut balancer, change) = Balancer::new(seconds.clone(), sizes(126, 2), 0);
        assert!(change.is_some() && balancer.is_idle(2));
        let idle = balancer.shares().to_string();
        assert_eq!(balancer.shares().images(2), 0);
        let mut step = 0;
        let (tried, change) = until_change(&mut balancer, &mut step, &seconds).expect("a trial");
        assert_eq!(balancer.shares().images(2), 2);
        assert!(balancer.is_trying() && balancer.is_idle(2));
        assert_eq!(balancer.lasting_shares().to_string(), idle);
        assert_eq!(in_seconds(&change), "64, 200");
        let (ended, _) = until_change(&mut balancer, &mut step, &seconds).expect("its end");
        assert_eq!(balancer.shares().to_string(), idle);
        // From the second step after the decision to the one after the next decision.
        let lost = (ended - tried) as f64 * (200.0 - 64.0);
        assert!(lost <= 0.01 * 64.0 * tried as f64, "{lost} in {tried} steps");
        // It was slow only for a while.
        seconds[2].image = 1.0;
        let (again, _) = until_change(&mut balancer, &mut step, &seconds).expect("a trial");
        assert!(again - ended >= tried - WINDOW as u64);
        until_change(&mut balancer, &mut step, &seconds).expect("its end");
        assert_eq!(balancer.shares().to_string(), "42, 42, 42");
        assert!(!balancer.is_idle(2) && !balancer.is_trying());
    }

    #[test]
    fn one_of_many_gets_its_share_back_and_a_far_slower_one_is_never_tried() {
        // Each micro-batch has a fixed cost: half the time of an even share.
        let recovered = Cost {
            fixed: 8.0,
            image: 0.5,
        };
        let mut all = vec![recovered; 32];
        all[31] = recovered.scaled(5.0);
        let (mut balancer, _) = Balancer::new(all.clone(), sizes(512, 1), 0);
        assert!(balancer.is_idle(31));
        all[31] = recovered;
        let mut step = 0;
        until_change(&mut balancer, &mut step, &all).expect("a trial");
        until_change(&mut balancer, &mut step, &all).expect("its end");
        assert_eq!(balancer.shares().images(31), 16);

        let (mut balancer, _) = Balancer::new(costs(&[1.0, 1000.0]), sizes(64, 1), 0);
        let mut step = 0;
        assert_eq!(
            until_change(&mut balancer, &mut step, &costs(&[1.0, 1000.0])),
            None
        );
        assert!(balancer.is_idle(1));
    }
}
